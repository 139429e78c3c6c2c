package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// held returns a client whose replies can be kept back one by one.
func held(t *testing.T) (*ratelimit.Client, *redis.Client, *replies) {
	t.Helper()
	rdb := redistest.Shared(t).Client(t)
	r := &replies{make(chan heldReply, 1)}
	rdb.AddHook(r)
	return newClient(t, rdb), rdb, r
}

// replies keeps back the reply of the next script, when told to.
type replies struct{ next chan heldReply }

type heldReply struct{ executed, released chan struct{} }

func (*replies) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*replies) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (r *replies) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if redis.HasErrorPrefix(err, "NOSCRIPT") {
			return err
		}
		select {
		case h := <-r.next:
			close(h.executed)
			<-h.released
		default:
		}
		return err
	}
}

// hold keeps back the reply of the next command, until release is called. executed is closed when the server
// has executed it.
func (r *replies) hold() (executed <-chan struct{}, release func()) {
	h := heldReply{make(chan struct{}), make(chan struct{})}
	r.next <- h
	return h.executed, func() {
		close(h.released)
		select {
		case <-r.next: // it was not needed
		default:
		}
	}
}

// kinds are Limiters of all algorithms.
var kinds = map[string]ratelimit.Algorithm{
	"GCRA": ratelimit.GCRA, "windows": ratelimit.FixedWindow, "sliding windows": ratelimit.SlidingWindow,
}

// Guarantees: Q9.
func TestWait_WhatWasChargedForCancelledWaitersIsNotStocked(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		limit     ratelimit.Limit
		algorithm ratelimit.Algorithm
		most      int // granted to callers that come right after
	}{
		"GCRA with a burst of 1":  {ratelimit.PerSecond(100).WithBurst(1), ratelimit.GCRA, 4},
		"GCRA with a burst of 10": {ratelimit.PerSecond(100).WithBurst(10), ratelimit.GCRA, 13},
		"windows":                 {ratelimit.Limit{Rate: 10, Per: 200 * time.Millisecond, Burst: 10}, ratelimit.FixedWindow, 20},
		"sliding windows":         {ratelimit.Limit{Rate: 10, Per: 200 * time.Millisecond, Burst: 10}, ratelimit.SlidingWindow, 20},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			client, _, replies := held(t)
			k, name, w := client.Limiter("stock", c.limit, ratelimit.WithAlgorithm(c.algorithm)), redistest.Name(t), newWheel(t)
			_, err := k.Peek(t.Context(), name) // tells the server the script
			require.NoError(t, err)
			for range 40 {
				executed, release := replies.hold()
				done := make(chan error, 1)
				cancel := k.WaitFunc(t.Context(), name, 1, func(err error) { done <- err })
				select {
				case <-executed:
					cancel()
				case err := <-done: // what the one before has left was still good
					done <- err
				}
				release()
				if err := <-done; err != nil {
					require.ErrorIs(t, err, context.Canceled)
				}
				require.NoError(t, w.Sleep(t.Context(), 10*time.Millisecond))
			}
			began, granted := time.Now(), 0
			for range 100 {
				r, err := k.Allow(t.Context(), name)
				require.NoError(t, err)
				if r.Allowed {
					granted++
				}
			}
			may := c.most + int(time.Since(began)/(10*time.Millisecond))
			t.Logf("%d granted in %v", granted, time.Since(began))
			require.LessOrEqual(t, granted, may)
		})
	}
}

// Ten permits that were charged for a waiter that has gone are there for the next one.
// Guarantees: Q9.
func TestWait_ACancelledWaiterLeavesItsPermitsToTheNext(t *testing.T) {
	t.Parallel()
	for what, algorithm := range kinds {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			client, _, replies := held(t)
			k, name := client.Limiter("next", ratelimit.PerHour(10), ratelimit.WithAlgorithm(algorithm)), redistest.Name(t)
			_, err := k.Peek(t.Context(), name)
			require.NoError(t, err)
			executed, release := replies.hold()
			gone, served := make(chan error, 1), make(chan error, 1)
			cancel := k.WaitFunc(t.Context(), name, 10, func(err error) { gone <- err })
			<-executed
			k.WaitFunc(t.Context(), name, 1, func(err error) { served <- err })
			cancel()
			release()
			require.ErrorIs(t, <-gone, context.Canceled)
			require.NoError(t, answer(t, served))
		})
	}
}

// What is not used goes back to Redis, for others.
// Guarantees: Q9.
func TestWait_WhatIsLeftIsGivenBack(t *testing.T) {
	t.Parallel()
	limit := ratelimit.Limit{Rate: 20, Per: time.Hour, Burst: 20}
	for what, use := range map[string]func(c *ratelimit.Client, name string) (
		wait func(context.Context, int64, func(error)) func(), peek func(context.Context) (ratelimit.Result, error)){
		"GCRA": func(c *ratelimit.Client, name string) (func(context.Context, int64, func(error)) func(), func(context.Context) (ratelimit.Result, error)) {
			k := c.Limiter("back", limit)
			return func(ctx context.Context, n int64, f func(error)) func() { return k.WaitFunc(ctx, name, n, f) },
				func(ctx context.Context) (ratelimit.Result, error) { return k.Peek(ctx, name) }
		},
		"a log": func(c *ratelimit.Client, name string) (func(context.Context, int64, func(error)) func(), func(context.Context) (ratelimit.Result, error)) {
			l := c.StoredLimiter(name)
			require.NoError(t, l.SetRate(t.Context(), limit))
			return l.WaitFunc, l.Peek
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			client, _, replies := held(t)
			wait, peek := use(client, redistest.Name(t))
			_, err := peek(t.Context())
			require.NoError(t, err)
			executed, release := replies.hold()
			gone := make(chan error, 1)
			cancel := wait(t.Context(), 20, func(err error) { gone <- err })
			<-executed
			cancel()
			release()
			require.ErrorIs(t, <-gone, context.Canceled)
			redistest.Poll(t, func() bool {
				r, err := peek(t.Context())
				return err == nil && r.Remaining == 20
			})
		})
	}
}
