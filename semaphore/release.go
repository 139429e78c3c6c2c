package semaphore

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/cleanup"
)

// pendingRelease is a release in the background, of permits that have no holder. Without ids it is a fair semaphore whose free permits are
// to be assigned.
type pendingRelease struct {
	name string
	fair bool
	ids  []string
}

func (c *Client) newCleanup() *cleanup.Queue[pendingRelease] {
	return cleanup.New(cleanup.Config[pendingRelease]{
		Wheel: c.wheel, Gate: &c.gate, Send: c.sendReleases, MaxBatch: maxBatch,
		Refused: func(p pendingRelease, err error) {
			c.logger.LogAttrs(context.Background(), slog.LevelWarn, "release refused, permits end with their lease",
				slog.String("name", p.name), slog.Any("error", err))
		},
	})
}

// sendReleases is the cleanup's Send. Releases of one semaphore share scripts, with each other and with those of callers.
func (c *Client) sendReleases(ctx context.Context, batch []pendingRelease, done func(i int, err error)) {
	for i, p := range batch {
		c.queueOf(p.fair).WaitFunc(ctx, p.name, &releaseRequest{ids: p.ids}, func(_ *releaseRequest, err error) { done(i, err) })
	}
}

// releaseLater releases, in the background and after a delay, permits that a request may have got or a grant had. lease is how long they
// last. ambiguous says that a copy of the request may still be under way.
func (c *Client) releaseLater(p pendingRelease, delay, lease time.Duration, ambiguous bool) {
	if p.fair { // a place in line outlasts a short lease
		lease = max(lease, c.fairAlive())
	}
	c.cleanup.Add(p, delay, lease, ambiguous)
}

// closeCleanup releases what is left to the background.
func (c *Client) closeCleanup(ctx context.Context) error {
	if failed, err := c.cleanup.Close(ctx); failed > 0 {
		return fmt.Errorf("%d grants could not be released and end with their lease: %w", failed, err)
	}
	return nil
}

// releaseLater releases the grant's permits in the background, after a delay.
func (g *Grant) releaseLater(delay time.Duration) {
	lasts := max(g.ttl, time.Duration(g.longest.Load()))
	g.client.releaseLater(pendingRelease{g.name, g.fair, g.ids}, delay, lasts, g.doubt)
}
