package ratelimit_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// line is a limiter of any kind, as waiters see it.
type line struct {
	allow    func(ctx context.Context, n int64) (ratelimit.Result, error)
	wait     func(ctx context.Context, n int64) error
	waitFunc func(ctx context.Context, n int64, f func(error)) (cancel func())
}

// inLines runs f with a limiter of each kind.
func inLines(t *testing.T, c *ratelimit.Client, what string, limit ratelimit.Limit, f func(t *testing.T, l line)) {
	t.Helper()
	run := func(kind string, l line) {
		t.Run(what+", "+kind, func(t *testing.T) {
			t.Parallel()
			f(t, l)
		})
	}
	for kind, algorithm := range kinds {
		k, name := c.Limiter("k", limit, ratelimit.WithAlgorithm(algorithm)), redistest.Name(t)
		run(kind, line{
			func(ctx context.Context, n int64) (ratelimit.Result, error) { return k.AllowN(ctx, name, n) },
			func(ctx context.Context, n int64) error { return k.WaitN(ctx, name, n) },
			func(ctx context.Context, n int64, f func(error)) func() { return k.WaitFunc(ctx, name, n, f) },
		})
	}
	for kind, scope := range scopes {
		l := newStoredLimiter(t, c, limit, scope)
		run("a log "+kind, line{l.AllowN, l.WaitN, l.WaitFunc})
	}
}

// What the tests of x/sync's semaphore ask of waiting, here of limiters.
func waitingLikeXSync(t *testing.T, c *ratelimit.Client, _ redis.UniversalClient) {
	spend := func(t *testing.T, l line, n int64) {
		r, err := l.allow(t.Context(), n)
		require.NoError(t, err)
		require.True(t, r.Allowed)
	}

	inLines(t, c, "a request for too much fails at once and holds up no other", perSeconds(5, 1), func(t *testing.T, l line) {
		spend(t, l, 5)
		done := make(chan error, 3)
		l.waitFunc(t.Context(), 1, func(err error) { done <- err })
		require.ErrorIs(t, l.wait(t.Context(), 6), ratelimit.ErrExceedsLimit)
		l.waitFunc(t.Context(), 1, func(err error) { done <- err })
		for range 2 {
			require.NoError(t, <-done)
		}
	})

	inLines(t, c, "a request for all is not starved by requests for one", perSeconds(5, 0.3), func(t *testing.T, l line) {
		ctx, cancel := context.WithCancel(within(t, patience))
		defer cancel()
		var small sync.WaitGroup
		for range 5 {
			small.Go(func() {
				for l.wait(ctx, 1) == nil {
				}
			})
		}
		for range 3 {
			require.NoError(t, l.wait(ctx, 5))
		}
		cancel()
		small.Wait()
	})

	inLines(t, c, "when the first in line gives up the rest goes on at once", perSeconds(10, 600), func(t *testing.T, l line) {
		spend(t, l, 8)
		gaveUp, served := make(chan error, 1), make(chan error, 2)
		stop := l.waitFunc(t.Context(), 10, func(err error) { gaveUp <- err })
		for range 2 {
			l.waitFunc(t.Context(), 1, func(err error) { served <- err })
		}
		r, err := l.allow(t.Context(), 1)
		require.NoError(t, err)
		require.False(t, r.Allowed, "waiters are not overtaken")
		began := time.Now()
		stop()
		require.ErrorIs(t, <-gaveUp, context.Canceled)
		require.NoError(t, <-served)
		require.NoError(t, <-served)
		require.Less(t, time.Since(began), 20*time.Second)
	})

	inLines(t, c, "a context that has ended takes nothing, before or in line", perSeconds(5, 3600), func(t *testing.T, l line) {
		ctx, cancel := context.WithCancel(t.Context())
		spend(t, l, 3)
		done := make(chan error, 1)
		l.waitFunc(ctx, 3, func(err error) { done <- err })
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		require.ErrorIs(t, l.wait(ctx, 1), context.Canceled)
		l.waitFunc(ctx, 1, func(err error) { done <- err })
		require.ErrorIs(t, <-done, context.Canceled)
		_, err := l.allow(ctx, 1)
		require.ErrorIs(t, err, context.Canceled)
		redistest.Poll(t, func() bool { // what it had reserved is given back
			r, err := l.allow(t.Context(), 0)
			require.NoError(t, err)
			return r.Remaining == 2
		})
	})
}
