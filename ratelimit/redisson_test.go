package ratelimit_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// redissonDefects are what Redisson's scripts do wrong and these do not.
func redissonDefects(t *testing.T, c *ratelimit.Client, rdb redis.UniversalClient) {
	t.Run("R1: a script executed twice charges once, and what a peer's retry lost is found", func(t *testing.T) {
		t.Parallel()
		l, name := named(t, c, perSeconds(10, 60), ratelimit.Overall)
		keys := ratelimit.LogKeys(name)
		m := ratelimit.Member([16]byte{7}, 3)
		for range 2 {
			reply, err := scripts.RateLog.Run(t.Context(), rdb, keys, "10", -1, 0, 0, 0, m).Int64Slice()
			require.NoError(t, err)
			require.Equal(t, []int64{10, 60_000, 7}, reply[:3])
			require.Zero(t, reply[5])
		}
		require.Equal(t, int64(1), rdb.ZCard(t.Context(), keys[2]).Val())
		j := java{t: t, rdb: rdb, name: name}
		j.tryAcquire(2, true)
		require.Equal(t, "3", rdb.Get(t.Context(), keys[1]).Val(), "two permits are lost to Java for good")
		requireLeft(t, l, 5)
		take(t, l, 5, true)
		take(t, l, 1, false)
	})

	t.Run("R2: a value without its log is no value", func(t *testing.T) {
		t.Parallel()
		for _, value := range []string{"0", "-3", "4", "99", "nonsense", "1.5", "nan"} {
			l, name := named(t, c, perSeconds(10, 60), ratelimit.Overall)
			require.NoError(t, rdb.Set(t.Context(), ratelimit.LogKeys(name)[1], value, 0).Err())
			take(t, l, 10, true)
			take(t, l, 1, false)
		}
	})

	t.Run("R2: also if it goes stale while this process knows the limit", func(t *testing.T) {
		t.Parallel()
		l, name := named(t, c, perSeconds(10, 60), ratelimit.Overall)
		take(t, l, 1, true)
		keys := ratelimit.LogKeys(name)
		require.NoError(t, rdb.Set(t.Context(), keys[1], 2, 0).Err())
		require.NoError(t, rdb.Del(t.Context(), keys[2]).Err())
		take(t, l, 10, true)
		take(t, l, 1, false)
	})

	t.Run("a log without its value is counted", func(t *testing.T) {
		t.Parallel()
		l, name := named(t, c, perSeconds(10, 60), ratelimit.Overall)
		take(t, l, 4, true)
		require.NoError(t, rdb.Del(t.Context(), ratelimit.LogKeys(name)[1]).Err())
		requireLeft(t, l, 6)
		take(t, l, 6, true)
		take(t, l, 1, false)
	})

	t.Run("entries far in the future, of a clock that was wrong, do not lock out for ever", func(t *testing.T) {
		t.Parallel()
		l, name := named(t, c, perSeconds(10, 1), ratelimit.Overall)
		take(t, l, 10, true)
		keys := ratelimit.LogKeys(name)
		require.NoError(t, rdb.Del(t.Context(), keys[2]).Err())
		require.NoError(t, rdb.ZAdd(t.Context(), keys[2], redis.Z{
			Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: ratelimit.Member([16]byte{1}, 10),
		}).Err())
		take(t, l, 10, true)
	})

	t.Run("R6: n is not cut to 32 bits", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		require.True(t, java{t: t, rdb: rdb, name: name}.trySetRate(1<<40, time.Minute, ratelimit.Overall, 0))
		l := c.StoredLimiter(name)
		_, err := l.AllowN(t.Context(), 1<<32)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		r := take(t, l, 1<<32-1, true)
		require.Equal(t, int64(1<<40-(1<<32-1)), r.Remaining)
	})

	t.Run("keys that hold something else are named", func(t *testing.T) {
		t.Parallel()
		for _, which := range []int{1, 2} {
			l, name := named(t, c, perSeconds(10, 1), ratelimit.Overall)
			require.NoError(t, rdb.LPush(t.Context(), ratelimit.LogKeys(name)[which], 1).Err())
			_, err := l.Allow(t.Context())
			require.ErrorIs(t, err, ratelimit.ErrWrongKind)
			require.NotContains(t, err.Error(), "script")
		}
	})

	t.Run("R3: every client follows a limit of the scope PerClient that was changed by one", func(t *testing.T) {
		t.Parallel()
		ours, name := named(t, c, perSeconds(3, 60), ratelimit.PerClient)
		theirs := newClient(t, rdb).StoredLimiter(name)
		take(t, ours, 3, true)
		take(t, theirs, 3, true)
		take(t, ours, 1, false)
		require.NoError(t, ours.SetRate(t.Context(), perSeconds(10, 60), ratelimit.WithScope(ratelimit.PerClient)))
		take(t, ours, 10, true)
		requireSoonLeft(t, theirs, 10)
		take(t, theirs, 10, true)
		take(t, theirs, 1, false)
	})

	t.Run("R4: a limit without a keep-alive stays, whatever it had before", func(t *testing.T) {
		t.Parallel()
		l, name := named(t, c, perSeconds(3, 1), ratelimit.Overall)
		require.NoError(t, l.SetRate(t.Context(), perSeconds(3, 1), ratelimit.WithKeepAlive(time.Second)))
		require.Positive(t, rdb.PTTL(t.Context(), name).Val())
		require.NoError(t, l.SetRate(t.Context(), perSeconds(3, 1)))
		require.Equal(t, time.Duration(-1), rdb.PTTL(t.Context(), name).Val())
	})

	t.Run("R5: a big request asks twice, however many entries are before it", func(t *testing.T) {
		t.Parallel()
		alone := newClient(t, rdb)
		l, _ := named(t, alone, perSeconds(20, 0.5), ratelimit.Overall)
		for range 20 {
			take(t, l, 1, true)
		}
		before := alone.Stats().Scripts
		require.NoError(t, l.WaitN(within(t, patience), 20))
		require.LessOrEqual(t, alone.Stats().Scripts-before, int64(2))
	})
}

// No clock of a client reaches Redis: with whatever is sent, its time is not.
// Guarantees: C3.
func TestRatelimit_SendsNoTimeOfItsOwn(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	seen := &recorder{}
	rdb.AddHook(seen)
	c, name, ctx := newClient(t, rdb), redistest.Name(t), t.Context()
	k, l := c.Limiter("k", ratelimit.PerSecond(3)), c.StoredLimiter(name)
	require.NoError(t, l.SetRate(ctx, ratelimit.PerSecond(3)))
	for range 5 {
		_, _ = k.Allow(ctx, name)
		_, _ = l.Allow(ctx)
		_, _ = c.All(k.Part(name+"2"), c.Limiter("also", ratelimit.PerSecond(3)).Part(name+"2")).Allow(ctx)
		require.NoError(t, l.Wait(ctx))
		_, _ = k.Reserve(ctx, name, 1)
		r, err := l.Reserve(ctx, 1)
		require.NoError(t, err)
		_, _ = r.Cancel(ctx)
	}
	require.Greater(t, len(seen.all()), 10)
	require.Empty(t, timesIn(seen.all(), time.Now()))
	require.NotEmpty(t, timesIn([]any{time.Now().UnixMilli()}, time.Now()), "control")
	require.NotEmpty(t, timesIn([]any{strconv.FormatInt(time.Now().Add(-time.Hour).UnixMicro(), 10)}, time.Now()), "control")
}
