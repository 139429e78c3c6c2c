package ratelimit_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// windowCalls are all calls that decide by a fixed window without waiting.
var windowCalls = map[string]func(ctx context.Context, c *ratelimit.Client, k *ratelimit.Limiter, key string) (ratelimit.Result, error){
	"Allow": func(ctx context.Context, _ *ratelimit.Client, k *ratelimit.Limiter, key string) (ratelimit.Result, error) {
		return k.Allow(ctx, key)
	},
	"AllowUpTo": func(ctx context.Context, _ *ratelimit.Client, k *ratelimit.Limiter, key string) (ratelimit.Result, error) {
		return k.AllowUpTo(ctx, key, 10)
	},
	"Peek": func(ctx context.Context, _ *ratelimit.Client, k *ratelimit.Limiter, key string) (ratelimit.Result, error) {
		return k.Peek(ctx, key)
	},
	"All": func(ctx context.Context, c *ratelimit.Client, k *ratelimit.Limiter, key string) (ratelimit.Result, error) {
		return several(c, k, key).Allow(ctx)
	},
	"All.Peek": func(ctx context.Context, c *ratelimit.Client, k *ratelimit.Limiter, key string) (ratelimit.Result, error) {
		return several(c, k, key).Peek(ctx)
	},
}

// several combines a limit with a GCRA limit that grants everything.
func several(c *ratelimit.Client, k *ratelimit.Limiter, key string) *ratelimit.All {
	wide := c.Limiter("wide", ratelimit.PerSecond(1_000_000), ratelimit.WithHashTag(key))
	return c.All(k.Part(key), wide.Part(key))
}

// withWindow runs a test for each call, on a client and a key of its own.
func withWindow(t *testing.T, test func(t *testing.T, call func(limit ratelimit.Limit) ratelimit.Result, rdb *redis.Client, key string)) {
	t.Helper()
	for what, call := range windowCalls {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, rdb, _, name := shared(t)
			test(t, func(limit ratelimit.Limit) ratelimit.Result {
				k := c.Limiter("k", limit, ratelimit.WithAlgorithm(ratelimit.FixedWindow))
				r, err := call(t.Context(), c, k, name)
				require.NoError(t, err)
				return r
			}, rdb, "k:{"+name+"}:window")
		})
	}
}

// Guarantees: Q1.
func TestFixedWindow_NothingIsGrantedFromAWindowThatHasNotBegun(t *testing.T) {
	t.Parallel()
	withWindow(t, func(t *testing.T, call func(ratelimit.Limit) ratelimit.Result, rdb *redis.Client, key string) {
		// A waiter of another process has opened the window that begins in half a minute.
		require.NoError(t, rdb.Set(t.Context(), key, "1:60000", 90*time.Second).Err())
		for _, limit := range []ratelimit.Limit{ratelimit.PerMinute(100), ratelimit.PerMinute(1000), ratelimit.PerHour(1000)} {
			r := call(limit)
			require.False(t, r.Allowed, "%v: %+v", limit, r)
			require.Zero(t, r.Granted)
			require.Zero(t, r.Remaining)
			require.InDelta(t, 30*time.Second, r.RetryAfter, float64(patience))
			require.LessOrEqual(t, r.RetryAfter, 30*time.Second+2*time.Millisecond)
		}
		require.Equal(t, "1:60000", rdb.Get(t.Context(), key).Val())
	})
}

// The window may end while the script runs, which then has opened the next one.
func TestFixedWindow_AWaiterIsServedThatFindsTheEndOfAWindow(t *testing.T) {
	t.Parallel()
	for _, ends := range []int64{1, 0, -1, -20} {
		synctest.Test(t, func(t *testing.T) {
			server := &redistest.Replying{RoundTrip: time.Millisecond}
			server.Set([]any{int64(5), int64(0), ends, int64(1)})
			rdb := server.Client(t)
			c := newClient(t, rdb)
			k := c.Limiter("k", ratelimit.PerMinute(5), ratelimit.WithAlgorithm(ratelimit.FixedWindow))
			began := time.Now()
			require.NoError(t, k.Wait(t.Context(), "key"))
			require.LessOrEqual(t, time.Since(began), 10*time.Millisecond)
			require.NoError(t, c.Close(t.Context()))
			require.NoError(t, rdb.Close())
		})
	}
}

// Guarantees: Q30.
func TestFixedWindow_UsageAboveALoweredLimitIsNoDebt(t *testing.T) {
	t.Parallel()
	hour := time.Hour.Milliseconds()
	withWindow(t, func(t *testing.T, call func(ratelimit.Limit) ratelimit.Result, rdb *redis.Client, key string) {
		require.NoError(t, rdb.Do(t.Context(), "SET", key, "700:3600000", "PX", hour).Err())
		r := call(ratelimit.PerHour(100))
		require.False(t, r.Allowed)
		require.Zero(t, r.Remaining)
		require.Greater(t, r.RetryAfter, time.Hour-patience)
		require.LessOrEqual(t, r.RetryAfter, time.Hour+time.Millisecond, "until the window ends")
		require.LessOrEqual(t, r.ResetAfter, time.Hour)
		r = call(ratelimit.PerHour(701))
		require.True(t, r.Allowed, "a limit that is raised again holds at once")
	})

	t.Run("a waiter is served when the window ends", func(t *testing.T) {
		t.Parallel()
		for what, wait := range map[string]func(ctx context.Context, c *ratelimit.Client, k *ratelimit.Limiter, key string) error{
			"Wait": func(ctx context.Context, _ *ratelimit.Client, k *ratelimit.Limiter, key string) error {
				return k.Wait(ctx, key)
			},
			"All.Wait": func(ctx context.Context, c *ratelimit.Client, k *ratelimit.Limiter, key string) error {
				return several(c, k, key).Wait(ctx)
			},
		} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				c, rdb, _, name := shared(t)
				key := "k:{" + name + "}:window"
				k := c.Limiter("k", perSeconds(5, 60), ratelimit.WithAlgorithm(ratelimit.FixedWindow))
				// Fifty-eight seconds of the window are over.
				require.NoError(t, rdb.Set(t.Context(), key, "700:60000", 2*time.Second).Err())
				_, err := k.Peek(t.Context(), name) // the process knows the state before the waiter comes
				require.NoError(t, err)
				began := time.Now()
				require.NoError(t, wait(within(t, patience), c, k, name))
				require.GreaterOrEqual(t, time.Since(began), 1900*time.Millisecond)
			})
		}
	})
}
