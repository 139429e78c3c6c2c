package ratelimit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// Guarantees: Q18.
func TestLimiter_NothingIsKeptForALimit(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	ctx := t.Context()
	k := c.Limiter("tenants", ratelimit.PerHour(1_000_000))
	for i := range int64(2000) {
		limit := ratelimit.PerHour(1_000_000 + i)
		r, err := c.Limiter(fmt.Sprint("tenant", i), limit).Allow(ctx, name)
		require.NoError(t, err)
		require.Equal(t, limit.Burst, r.Limit)
		r, err = k.With(limit).Allow(ctx, name+fmt.Sprint(i))
		require.NoError(t, err)
		require.Equal(t, limit.Burst, r.Limit)
		require.Equal(t, limit.Burst-1, r.Remaining)
	}
	redistest.Poll(t, func() bool { return ratelimit.Kept(c) == 0 })
}

// Guarantees: Q18.
func TestLimiter_ALimitForOneCall(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	ctx := t.Context()
	k := c.Limiter("k", ratelimit.PerHour(100))
	few := ratelimit.PerHour(100).WithBurst(3)
	for range 3 {
		r, err := k.With(few).Allow(ctx, name)
		require.NoError(t, err)
		require.True(t, r.Allowed)
	}
	r, err := k.With(few).Allow(ctx, name)
	require.NoError(t, err)
	require.False(t, r.Allowed)
	r, err = k.Allow(ctx, name)
	require.NoError(t, err)
	require.True(t, r.Allowed, "what is used counts under the other limit, which has more")
	require.Equal(t, int64(96), r.Remaining)
	_, err = k.With(few).AllowN(ctx, name, 4)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	_, err = k.With(ratelimit.Limit{Rate: 1}).Allow(ctx, name)
	require.ErrorIs(t, err, cogwheel.ErrInvalid)
	require.Equal(t, ratelimit.PerHour(100), k.Limit())
	require.NoError(t, k.Err())
	require.ErrorIs(t, c.Limiter("k", ratelimit.Limit{}).Err(), cogwheel.ErrInvalid)
}

// Guarantees: Q18.
func TestLocalShare_IsBounded(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t, impatient)
	server.Kill()
	down := func(t *testing.T, n int64) *ratelimit.Client {
		t.Helper()
		c := newClient(t, rdb, ratelimit.WithPolicy(ratelimit.LocalShare(n)), ratelimit.WithBreaker(1, time.Minute))
		_, _ = c.Limiter("k", ratelimit.PerHour(8)).Allow(t.Context(), "finds out")
		redistest.Poll(t, func() bool { return c.Stats().Down }) // a check of a slow machine may still be in progress
		return c
	}

	t.Run("in keys", func(t *testing.T) {
		t.Parallel()
		c := down(t, 2)
		k := c.Limiter("k", ratelimit.PerHour(8))
		for i := range 100_000 {
			granted, asked := 0, 1
			if i%20 == 0 {
				asked = 5
			}
			for range asked {
				r, err := k.Allow(t.Context(), fmt.Sprint(i))
				require.NoError(t, err)
				if r.Allowed {
					granted++
				}
			}
			require.LessOrEqual(t, granted, 4)
			if i < 65_000 {
				require.Equal(t, min(4, asked), granted, "each has its share as long as there is room")
			}
		}
		require.LessOrEqual(t, ratelimit.Shares(c), 1<<16)
	})

	t.Run("in what it grants, however many processes there are", func(t *testing.T) {
		t.Parallel()
		for _, n := range []int64{1 << 33, 1 << 50, 1<<63 - 1} {
			k := down(t, n).Limiter("k", ratelimit.Limit{Rate: 1_000_000, Per: time.Minute, Burst: 1_000_000})
			granted := 0
			for range 200 {
				r, err := k.Allow(t.Context(), "u")
				require.NoError(t, err)
				if r.Allowed {
					granted++
				}
			}
			require.Equal(t, 1, granted, "%d", n)
		}
	})
}

// A long log is not counted at the first call of each process; its value is kept to as far as it can be
// right.
// Guarantees: Q24.
func TestStoredLimiter_ALongLogIsNotCounted(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	const entries, rate = 20_000, 30_000
	for what, c := range map[string]struct {
		value any
		left  int64
	}{
		"a value that is right":     {rate - entries, rate - entries},
		"one that is too low":       {7, 7},
		"one that cannot be right":  {rate, rate - entries},
		"and one that is not there": {nil, rate - entries},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			l, rdb, name := storedLimiter(t, perSeconds(rate, 3600), ratelimit.Overall)
			keys := ratelimit.LogKeys(name)
			fill(t, rdb, keys[2], entries)
			if c.value != nil {
				require.NoError(t, rdb.Set(t.Context(), keys[1], c.value, 0).Err())
			}
			requireLeft(t, l, c.left)
			r := take(t, l, 1, true)
			require.Equal(t, c.left-1, r.Remaining)
		})
	}

	t.Run("a short one is (control)", func(t *testing.T) {
		t.Parallel()
		l, rdb, name := storedLimiter(t, perSeconds(rate, 3600), ratelimit.Overall)
		keys := ratelimit.LogKeys(name)
		fill(t, rdb, keys[2], 4000)
		require.NoError(t, rdb.Set(t.Context(), keys[1], 7, 0).Err())
		requireLeft(t, l, rate-4000)
	})

	t.Run("one that has expired as a whole is let go", func(t *testing.T) {
		t.Parallel()
		l, rdb, name := storedLimiter(t, perSeconds(rate, 1), ratelimit.Overall)
		keys := ratelimit.LogKeys(name)
		fill(t, rdb, keys[2], entries)
		shift(t, rdb, keys[2], -time.Hour, entries)
		require.NoError(t, rdb.Set(t.Context(), keys[1], rate-entries, 0).Err())
		requireLeft(t, l, rate)
		take(t, l, rate, true)
		require.EqualValues(t, 1, rdb.ZCard(t.Context(), keys[2]).Val())
	})

	t.Run("a very long one as far as it is needed too", func(t *testing.T) {
		t.Parallel()
		const entries = 100_000
		l, rdb, name := storedLimiter(t, perSeconds(entries, 3600), ratelimit.Overall)
		keys := ratelimit.LogKeys(name)
		fill(t, rdb, keys[2], entries)
		shift(t, rdb, keys[2], -2*time.Hour, entries)
		require.NoError(t, rdb.Set(t.Context(), keys[1], 0, 0).Err())
		requireLeft(t, l, entries)
		take(t, l, 1, true)
		require.Greater(t, rdb.ZCard(t.Context(), keys[2]).Val(), int64(entries-8192))
		take(t, l, 50_000, true)
		take(t, l, 49_999, true)
		take(t, l, 1, false)
		require.EqualValues(t, 3, rdb.ZCard(t.Context(), keys[2]).Val())
	})

	t.Run("and one that has expired in part as far as it is needed", func(t *testing.T) {
		t.Parallel()
		l, rdb, name := storedLimiter(t, perSeconds(rate, 3600), ratelimit.Overall)
		keys := ratelimit.LogKeys(name)
		fill(t, rdb, keys[2], entries)
		shift(t, rdb, keys[2], -2*time.Hour, entries-10)
		require.NoError(t, rdb.Set(t.Context(), keys[1], rate-entries, 0).Err())
		granted := int64(0)
		for range 10 { // each lets some thousands go
			r, err := l.AllowN(t.Context(), 4000)
			require.NoError(t, err)
			granted += r.Granted
		}
		require.Equal(t, int64(28_000), granted)
		r, err := l.AllowUpTo(t.Context(), rate)
		require.NoError(t, err)
		require.Equal(t, int64(rate-28_000-10), r.Granted)
	})
}

// fill makes a log of so many entries of one permit.
func fill(t *testing.T, rdb *redis.Client, key string, entries int) {
	t.Helper()
	require.NoError(t, rdb.Eval(t.Context(), `
local now = redis.call('TIME')
for i = 1, ARGV[1] do
  redis.call('ZADD', KEYS[1], now[1] * 1000 - ARGV[1] + i, '\16' .. string.format('%016d', i) .. '\1\0\0\0')
end
return 1`, []string{key}, entries).Err())
}
