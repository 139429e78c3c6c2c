package ratelimit_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// What redis_rate's tests ask of AllowN and AllowAtMost; its 10 a second are 10 a minute here, lest a slow
// machine gain permits. A request above the burst is an error, where redis_rate names a time after which it
// would be denied as well.
func limiterAsRedisRate(t *testing.T, c *ratelimit.Client, rdb redis.UniversalClient) {
	const step, slack = 6 * time.Second, 3 * time.Second
	ctx, name := t.Context(), redistest.Name(t)
	k := c.Limiter("k", ratelimit.PerMinute(10))
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
	nothing := func(left int64, retry, reset time.Duration) {
		t.Helper()
		for _, ask := range []func(context.Context, string, int64) (ratelimit.Result, error){k.AllowN, k.AllowUpTo} {
			r, err := ask(ctx, name, 0)
			check(r, err, 0, left, 0, reset)
			require.True(t, r.Allowed, "none can be had at any time")
		}
		r, err := k.Peek(ctx, name)
		check(r, err, 0, left, retry, reset)
		require.Equal(t, left > 0, r.Allowed)
	}
	nothing(10, 0, 0)
	require.Zero(t, rdb.Exists(ctx, "k:{"+name+"}").Val(), "a look leaves nothing behind")
	r, err := k.Allow(ctx, name)
	check(r, err, 1, 9, 0, step)
	require.LessOrEqual(t, rdb.PTTL(ctx, "k:{"+name+"}").Val(), step+time.Millisecond, "the state expires with what it says")
	require.NoError(t, k.Reset(ctx, name))
	r, err = k.AllowN(ctx, name, 2)
	check(r, err, 2, 8, 0, 2*step)
	r, err = k.AllowN(ctx, name, 7)
	check(r, err, 7, 1, 0, 9*step)
	require.NoError(t, k.Reset(ctx, name))
	r, err = k.Allow(ctx, name)
	check(r, err, 1, 9, 0, step)
	r, err = k.AllowUpTo(ctx, name, 2)
	check(r, err, 2, 7, 0, 3*step)
	nothing(7, 0, 3*step)
	r, err = k.AllowUpTo(ctx, name, 10)
	check(r, err, 7, 0, 0, 10*step)
	require.True(t, r.Allowed)
	nothing(0, step, 10*step)
	r, err = k.AllowUpTo(ctx, name, 1000)
	check(r, err, 0, 0, step, 10*step)
	require.False(t, r.Allowed)
	r, err = k.AllowN(ctx, name, 10)
	check(r, err, 0, 0, 10*step, 10*step)
	_, err = k.AllowN(ctx, name, 1000)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	_, err = k.AllowN(ctx, name, -1)
	require.ErrorIs(t, err, cogwheel.ErrInvalid)
	_, err = k.AllowUpTo(ctx, name, -1)
	require.ErrorIs(t, err, cogwheel.ErrInvalid)

	// Of two and a half permits it takes two, and leaves the half, where redis_rate takes that as well.
	name += "half"
	now, err := rdb.Time(ctx).Result()
	require.NoError(t, err)
	require.NoError(t, rdb.Set(ctx, "k:{"+name+"}", now.Add(10*step-5*step/2).UnixMicro(), 0).Err())
	r, err = k.AllowUpTo(ctx, name, 5)
	check(r, err, 2, 0, 0, 10*step-step/2)
	r, err = k.AllowUpTo(ctx, name, 1)
	check(r, err, 0, 0, step/2, 10*step-step/2)
}

// A rate of one a millisecond: the time to wait is not rounded up to seconds. Calls at the same time share a round trip,
// so that some are denied on a slow machine too.
func limiterRetryAfter(t *testing.T, c *ratelimit.Client, _ redis.UniversalClient) {
	k, name := c.Limiter("k", ratelimit.Limit{Rate: 1, Per: time.Millisecond, Burst: 1}), redistest.Name(t)
	var denied atomic.Int64
	redistest.Poll(t, func() bool {
		redistest.Each(t, 16, func(int) error {
			r, err := k.Allow(t.Context(), name)
			if err != nil || r.Source != ratelimit.SourceRedis {
				return err
			}
			if !r.Allowed {
				denied.Add(1)
				if r.RetryAfter <= 0 || r.RetryAfter > time.Millisecond {
					return fmt.Errorf("denied for %v", r.RetryAfter)
				}
			}
			if r.ResetAfter > 2*time.Millisecond {
				return fmt.Errorf("unused again after %v", r.ResetAfter)
			}
			return nil
		})
		return denied.Load() >= 20
	})
}

func TestLimiter_AllowUpTo(t *testing.T) {
	t.Parallel()
	for what, algorithm := range kinds {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, _, trips, name := shared(t)
			k := c.Limiter("k", ratelimit.PerHour(7), ratelimit.WithAlgorithm(algorithm))
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
			_, err = k.AllowUpTo(t.Context(), name, -1)
			require.ErrorIs(t, err, cogwheel.ErrInvalid)
		})
	}
}
