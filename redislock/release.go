package redislock

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/cleanup"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

const (
	releaseTimeout = 5 * time.Second // for one batch in the background
	releaseBatch   = 100
)

// pendingRelease is a release in the background, for a lock without a holder.
type pendingRelease struct {
	*claim
	leave bool // the request may still be in the queue in Redis
}

func (p pendingRelease) call() scripts.Call {
	if p.leave {
		return p.kind().leave(p.claim)
	}
	return p.kind().release(p.claim)
}

func (c *Client) newCleanup() *cleanup.Queue[pendingRelease] {
	return cleanup.New(cleanup.Config[pendingRelease]{
		Wheel: c.wheel, Gate: &c.gate, Send: c.sendReleases, MaxBatch: releaseBatch, Failed: c.monitor.repeated,
		Refused: func(p pendingRelease, err error) {
			c.logger.LogAttrs(context.Background(), slog.LevelWarn,
				"redislock: Redis refused a release, the lock ends with its lease",
				slog.String("name", p.name()), slog.Any("error", err))
		},
	})
}

// abandon gives up a claim that Redis may have granted or enqueued. A place in the queue outlasts a short
// lease.
func (c *Client) abandon(of *claim, ambiguous bool) {
	lasts, leave := of.mutex.config.firstLease(), of.kind().queuesInRedis()
	if leave {
		lasts = max(lasts, c.fairAlive())
	}
	c.cleanup.Add(pendingRelease{of, leave}, 0, lasts, ambiguous)
}

// sendReleases is the cleanup's Send.
func (c *Client) sendReleases(ctx context.Context, batch []pendingRelease, done func(i int, err error)) {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	releases := make([]scripts.Call, len(batch))
	for i, p := range batch {
		releases[i] = p.call()
	}
	for i, cmd := range c.redis.Dedicated.RunBatch(ctx, DefaultLease, releases) {
		done(i, cmd.Err())
	}
}

// closeCleanup sends the pending releases.
func (c *Client) closeCleanup(ctx context.Context) error {
	if failed, err := c.cleanup.Close(ctx); failed > 0 {
		return fmt.Errorf("%d locks could not be released and end with their lease: %w", failed, err)
	}
	return nil
}
