package redislock

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/cleanup"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

const (
	releaseTimeout = 5 * time.Second // of one batch in the background
	releaseBatch   = 100
)

// pendingRelease is a release in the background, of a lock that has no holder.
type pendingRelease struct {
	*request
	leave bool // the request may still wait
}

func (p pendingRelease) call() scripts.Call {
	if p.leave {
		return p.kind().leave(p.request)
	}
	return p.kind().release(p.request)
}

func (c *Client) newCleanup() *cleanup.Queue[pendingRelease] {
	return cleanup.New(cleanup.Config[pendingRelease]{
		Wheel: c.wheel, Gate: &c.gate, Send: c.sendReleases, MaxBatch: releaseBatch,
		Refused: func(p pendingRelease, err error) {
			c.logger.LogAttrs(context.Background(), slog.LevelWarn,
				"redislock: Redis refused a release, the lock ends with its lease",
				slog.String("name", p.name()), slog.Any("error", err))
		},
	})
}

// releaseLater releases a lock that is not held any more, in the background, after a delay. ambiguous says
// that a copy of its request may still be under way.
func (l *Lock) releaseLater(delay time.Duration, ambiguous bool) {
	lasts := max(l.ttl(), time.Duration(l.longest.Load())) // any request for it was sent before
	l.client().cleanup.Add(pendingRelease{request: &l.request}, delay, lasts, ambiguous)
}

// abandon gives up a request that Redis may have granted or remembers as a waiter. A place in a line outlasts
// a short lease.
func (c *Client) abandon(req *request, ambiguous bool) {
	lasts, leave := req.ttl(), req.kind().leave != nil
	if leave {
		lasts = max(lasts, c.fairAlive())
	}
	c.cleanup.Add(pendingRelease{request: req, leave: leave}, 0, lasts, ambiguous)
}

// sendReleases is the cleanup's Send.
func (c *Client) sendReleases(ctx context.Context, batch []pendingRelease, done func(i int, err error)) {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	releases := make([]scripts.Call, len(batch))
	for i, p := range batch {
		releases[i] = p.call()
	}
	c.dedicated.Follow(ctx, DefaultLease)
	reload := false
	for i, cmd := range c.dedicated.RunBatch(ctx, releases) {
		err := cmd.Err()
		reload = reload || err != nil && !redisconn.Refused(err)
		done(i, err)
	}
	if reload {
		c.dedicated.Reload()
	}
}

// closeCleanup releases what is left to the background.
func (c *Client) closeCleanup(ctx context.Context) error {
	if failed, err := c.cleanup.Close(ctx); failed > 0 {
		return fmt.Errorf("%d locks could not be released and end with their lease: %w", failed, err)
	}
	return nil
}
