package ratelimit_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// What redis_rate's tests ask of AllowN and AllowAtMost; its 10 a second are 10 a minute here, lest a slow machine gain permits.
// A request above the burst is an error, where redis_rate names a time after which it would be denied as well.
func keyedAsRedisRate(t *testing.T, c *ratelimit.Client, _ redis.UniversalClient) {
	const step, slack = 6 * time.Second, 3 * time.Second
	ctx, name := t.Context(), redistest.Name(t)
	k := c.Keyed("k", ratelimit.PerMinute(10))
	check := func(r ratelimit.Result, err error, granted, left int64, retry, reset time.Duration) {
		t.Helper()
		require.NoError(t, err)
		require.Equal(t, granted, r.Granted)
		require.Equal(t, left, r.Remaining)
		require.Equal(t, int64(10), r.Limit)
		require.InDelta(t, retry, r.RetryAfter, float64(slack))
		require.LessOrEqual(t, r.RetryAfter, retry)
		require.InDelta(t, reset, r.ResetAfter, float64(slack))
		require.LessOrEqual(t, r.ResetAfter, reset)
	}
	r, err := k.Peek(ctx, name)
	check(r, err, 0, 10, 0, 0)
	r, err = k.Allow(ctx, name)
	check(r, err, 1, 9, 0, step)
	require.NoError(t, k.Reset(ctx, name))
	r, err = k.Allow(ctx, name)
	check(r, err, 1, 9, 0, step)
	r, err = k.AllowUpTo(ctx, name, 2)
	check(r, err, 2, 7, 0, 3*step)
	r, err = k.Peek(ctx, name)
	check(r, err, 0, 7, 0, 3*step)
	r, err = k.AllowUpTo(ctx, name, 10)
	check(r, err, 7, 0, 0, 10*step)
	require.True(t, r.Allowed)
	r, err = k.Peek(ctx, name)
	check(r, err, 0, 0, step, 10*step)
	r, err = k.AllowUpTo(ctx, name, 1000)
	check(r, err, 0, 0, step, 10*step)
	require.False(t, r.Allowed)
	r, err = k.AllowN(ctx, name, 10)
	check(r, err, 0, 0, 10*step, 10*step)
	_, err = k.AllowN(ctx, name, 1000)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
}

func TestKeyed_AllowUpTo(t *testing.T) {
	t.Parallel()
	for what, algorithm := range map[string]ratelimit.Algorithm{"GCRA": ratelimit.GCRA, "window": ratelimit.FixedWindow} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, _, trips, name := shared(t)
			k := c.Keyed("k", ratelimit.PerHour(7), algorithm)
			_, err := k.Peek(t.Context(), name) // tells the server the script
			require.NoError(t, err)
			for n := int64(1); n <= 12; n++ {
				require.NoError(t, k.Reset(t.Context(), name))
				var r ratelimit.Result
				var err error
				require.Equal(t, int64(1), trips.trips(func() { r, err = k.AllowUpTo(t.Context(), name, n) }))
				require.NoError(t, err)
				require.Equal(t, ratelimit.Result{
					Allowed: true, Granted: min(n, 7), Limit: 7, Remaining: 7 - min(n, 7), ResetAfter: r.ResetAfter,
				}, r)
				require.Positive(t, r.ResetAfter)
				r, err = k.AllowUpTo(t.Context(), name, 100)
				require.NoError(t, err)
				require.Equal(t, 7-min(n, 7), r.Granted)
				require.Equal(t, n < 7, r.Allowed)
				require.Equal(t, n < 7, r.RetryAfter == 0)
			}
			_, err = k.AllowUpTo(t.Context(), name, 0)
			require.ErrorIs(t, err, ratelimit.ErrInvalid)
			_, err = k.AllowUpTo(t.Context(), name, -1)
			require.ErrorIs(t, err, ratelimit.ErrInvalid)
		})
	}
}

// What RedissonRateLimiterTest asks, with shorter intervals. There is no expire(): a keep-alive does it; release() is Return.
func limiterAsRedisson(t *testing.T, c *ratelimit.Client, rdb redis.UniversalClient) {
	ctx, w := t.Context(), newWheel(t)
	with := func(limit ratelimit.Limit, scope ratelimit.Scope) *ratelimit.Limiter {
		l := c.Limiter(redistest.Name(t))
		ok, err := l.TrySetRate(ctx, limit, scope)
		require.NoError(t, err)
		require.True(t, ok)
		return l
	}

	t.Run("what was taken is back after the interval", func(t *testing.T) {
		t.Parallel()
		l := with(perSeconds(5, 0.5), ratelimit.Overall)
		requireLeft(t, l, 5)
		take(t, l, 2, true)
		requireLeft(t, l, 3)
		take(t, l, 2, true)
		take(t, l, 1, true)
		requireLeft(t, l, 0)
		take(t, l, 1, false)
		require.NoError(t, w.Sleep(ctx, 600*time.Millisecond))
		requireLeft(t, l, 5)
		take(t, l, 5, true)
	})

	t.Run("ten that wait for one each take nine intervals, and the next try fails", func(t *testing.T) {
		t.Parallel()
		l, began := with(perSeconds(1, 0.2), ratelimit.Overall), time.Now()
		for range 10 {
			require.NoError(t, l.Wait(ctx))
		}
		took := time.Since(began)
		take(t, l, 1, false)
		require.GreaterOrEqual(t, took, 1800*time.Millisecond)
		require.Less(t, took, 5*time.Second)
	})

	t.Run("a wait that cannot succeed in time fails", func(t *testing.T) {
		t.Parallel()
		l := with(perSeconds(1, 60), ratelimit.Overall)
		take(t, l, 1, true)
		require.ErrorIs(t, l.Wait(within(t, time.Second)), ratelimit.ErrWouldExceedDeadline)
	})

	t.Run("setting the rate begins anew, in both scopes", func(t *testing.T) {
		t.Parallel()
		for _, scope := range []ratelimit.Scope{ratelimit.PerClient, ratelimit.Overall} {
			l := with(perSeconds(10, 60), scope)
			take(t, l, 1, true)
			requireLeft(t, l, 9)
			require.NoError(t, l.SetRate(ctx, perSeconds(20, 60), scope))
			take(t, l, 1, true)
			requireLeft(t, l, 19)
			require.NoError(t, l.SetRate(ctx, perSeconds(20, 60), scope))
			take(t, l, 1, true)
			requireLeft(t, l, 19)
		}
	})

	t.Run("a shorter interval lets go what is older", func(t *testing.T) {
		t.Parallel()
		l := with(perSeconds(10, 60), ratelimit.Overall)
		take(t, l, 6, true)
		require.NoError(t, w.Sleep(ctx, 300*time.Millisecond))
		take(t, l, 1, true)
		ok, err := l.UpdateRate(ctx, perSeconds(10, 0.25), ratelimit.Overall, ratelimit.WithState())
		require.NoError(t, err)
		require.True(t, ok)
		r, err := l.Peek(ctx)
		require.NoError(t, err)
		require.GreaterOrEqual(t, r.Remaining, int64(9))
	})

	t.Run("two hundred who wait keep the log full", func(t *testing.T) {
		t.Parallel()
		const rate, waiters, rounds = 400, 200, 5
		l := with(perSeconds(rate, 0.5), ratelimit.Overall)
		took := time.Now()
		var granted atomic.Int64
		var all sync.WaitGroup
		for range waiters {
			all.Go(func() {
				for granted.Add(1) <= rate*rounds {
					if l.Wait(ctx) != nil {
						return
					}
				}
			})
		}
		all.Wait()
		require.GreaterOrEqual(t, time.Since(took), (rounds-1)*500*time.Millisecond)
		require.Less(t, time.Since(took), rounds*500*time.Millisecond+2*time.Second)
	})
}
