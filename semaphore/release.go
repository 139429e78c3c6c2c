package semaphore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/cleanup"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/hold"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// This file has the parts of releases that all kinds of semaphores share: the wait of a caller, and the
// releases in the background, which have no caller.

const releaseTimeout = 5 * time.Second // for a batch in the background

// queueRelease queues a release and blocks until finish has returned its outcome, or as hold.AwaitRelease until a
// second after the end of ctx. Then the release continues without its caller. finish runs before Close returns.
func queueRelease[T any](
	ctx context.Context, c *Client, q *waitqueue.Group[string, T], name string, request T, finish func(error) error,
) error {
	wait := func(done <-chan T) bool {
		return hold.AwaitRelease(ctx, c.wheel, func(end <-chan struct{}) bool {
			select {
			case <-done:
				return true
			case <-end:
				return false
			}
		})
	}
	leaving := func() func(T, error) {
		c.gate.EnterInside()
		return func(_ T, err error) {
			defer c.gate.Leave()
			_ = finish(err) // finish hands it to the background
		}
	}
	told, err := q.Stay(ctx, name, request, wait, leaving)
	if !told {
		return releaseError(name, conventions.Cause(ctx))
	}
	return finish(err)
}

// releaseError returns the error for the caller of a failed release: a refusal, or ErrUnconfirmed.
func releaseError(name string, err error) error {
	switch {
	case err == nil:
		return nil
	case redisconn.Permanent(err), errors.Is(err, ErrUnconfirmed):
		return operationError("release", name, err)
	default:
		return fmt.Errorf("%w: release %s: %w", ErrUnconfirmed, scripts.Quote(name), err)
	}
}

// pendingRelease is a release of leased permits without a holder.
type pendingRelease struct {
	name string
	fair bool
	ids  []string
}

func (c *Client) newCleanup() *cleanup.Queue[pendingRelease] {
	return cleanup.New(cleanup.Config[pendingRelease]{
		Wheel: c.wheel, Gate: &c.gate, Send: c.sendPendingReleases, MaxBatch: maxBatch, Failed: c.monitor.repeated,
		Refused: func(p pendingRelease, err error) {
			c.logger.LogAttrs(context.Background(), slog.LevelWarn,
				"semaphore: Redis refused a release, the permits end with their lease",
				slog.String("name", p.name), slog.Any("error", err))
		},
	})
}

// sendPendingReleases is the Send of the cleanup. It uses dedicated connections: a caller may have closed rdb, and
// permits must not stay taken for that.
func (c *Client) sendPendingReleases(
	ctx context.Context, batch []pendingRelease, done func(i int, err error),
) {
	c.gate.Workers.Go(func() { // a server that hangs delays no other batch
		ctx, cancel := c.wheel.WithTimeout(ctx, releaseTimeout)
		defer cancel()
		releases := make([]scripts.Call, len(batch))
		for i, p := range batch {
			releases[i] = c.releaseCall(p.name, p.fair, p.ids, "")
		}
		for i, cmd := range c.redis.Dedicated.RunBatch(ctx, DefaultLease, releases) {
			done(i, cmd.Err())
		}
	})
}

// releaseCall returns the call that releases permits. waiter is that of this process in the line, or "".
func (c *Client) releaseCall(name string, fair bool, ids []string, waiter string) scripts.Call {
	k := keysOf(name, fair)
	args := appendIDs([]any{c.redis.Channels.Verb(), k.channel, cmp.Or(waiter, "0"), c.idleMillis}, ids)
	return scripts.PermitRelease.Call([]string{k.permits, k.leases}, args...)
}

// releaseLater releases permits in the background after a delay. lease is how long they last without the
// release. ambiguous means that a copy of their request may still be in flight.
func (c *Client) releaseLater(p pendingRelease, delay, lease time.Duration, ambiguous bool) {
	c.cleanup.Add(p, delay, lease, ambiguous)
}

// closeCleanup sends the pending releases.
func (c *Client) closeCleanup(ctx context.Context) error {
	if failed, err := c.cleanup.Close(ctx); failed > 0 {
		return fmt.Errorf("%d releases failed, their permits end with their lease: %w", failed, err)
	}
	return nil
}
