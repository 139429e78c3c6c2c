package ratelimit_test

import (
	"crypto/rand"
	"encoding/binary"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// java plays a service in Java on one limiter, with the commands that Redisson's scripts consist of and its own clock.
type java struct {
	t    *testing.T
	rdb  redis.UniversalClient
	name string
	skew time.Duration
}

func (j java) keys() (value, permits string) {
	return "{" + j.name + "}:value", "{" + j.name + "}:permits"
}

func (j java) trySetRate(rate int64, interval time.Duration) {
	for field, v := range map[string]int64{"rate": rate, "interval": interval.Milliseconds(), "keepAliveTime": 0, "type": 0} {
		require.NoError(j.t, j.rdb.HSetNX(j.t.Context(), j.name, field, v).Err())
	}
}

// tryAcquire returns whether n permits were granted, and otherwise the time to wait. twice repeats the charge, as a retry
// after a lost reply does.
func (j java) tryAcquire(n int64, twice bool) (bool, time.Duration) {
	ctx, t, rdb := j.t.Context(), j.t, j.rdb
	value, permits := j.keys()
	number := func(s string, err error) int64 {
		require.NoError(t, err)
		v, err := strconv.ParseInt(s, 10, 64)
		require.NoError(t, err)
		return v
	}
	sizes := func(members []string) (sum int64) {
		for _, m := range members {
			require.Equal(t, byte(16), m[0])
			require.Len(t, m, 21)
			sum += int64(binary.LittleEndian.Uint32([]byte(m[17:])))
		}
		return sum
	}
	rate := number(rdb.HGet(ctx, j.name, "rate").Result())
	interval := number(rdb.HGet(ctx, j.name, "interval").Result())
	now := time.Now().Add(j.skew).UnixMilli()
	if rdb.Exists(ctx, value).Val() == 0 {
		require.NoError(t, rdb.Set(ctx, value, rate, 0).Err())
	} else {
		to := strconv.FormatInt(now-interval, 10)
		old := rdb.ZRangeArgs(ctx, redis.ZRangeArgs{Key: permits, Start: "0", Stop: to, ByScore: true}).Val()
		if released := sizes(old); released > 0 {
			require.NoError(t, rdb.ZRemRangeByScore(ctx, permits, "0", to).Err())
			left := number(rdb.Get(ctx, value).Result()) + released
			if left > rate {
				left = rate - sizes(rdb.ZRange(ctx, permits, 0, -1).Val())
			}
			require.NoError(t, rdb.Set(ctx, value, left, 0).Err())
		}
		if number(rdb.Get(ctx, value).Result()) < n {
			oldest := rdb.ZRangeWithScores(ctx, permits, 0, 0).Val()
			require.NotEmpty(t, oldest, "a Java service would stumble over nil here")
			return false, time.Duration(3+interval-(now-int64(oldest[0].Score))) * time.Millisecond
		}
	}
	var id [16]byte
	_, _ = rand.Read(id[:])
	for range map[bool]int{false: 1, true: 2}[twice] {
		require.NoError(t, rdb.ZAdd(ctx, permits, redis.Z{Score: float64(now), Member: ratelimit.Member(id, n)}).Err())
		require.NoError(t, rdb.DecrBy(ctx, value, n).Err())
	}
	return true, 0
}

// bothSidesCountTogether has Go and Java take from one limiter in turn.
func bothSidesCountTogether(t *testing.T, c *ratelimit.Client, rdb redis.UniversalClient) {
	ctx, name := t.Context(), redistest.Name(t)
	j, l := java{t: t, rdb: rdb, name: name}, c.Limiter(name)
	j.trySetRate(5, 2*time.Second)
	cfg, err := l.Config(ctx)
	require.NoError(t, err)
	require.Equal(t, perSeconds(5, 2), cfg.Limit)
	ok, err := l.TrySetRate(ctx, perSeconds(9, 1), ratelimit.Overall)
	require.NoError(t, err)
	require.False(t, ok)

	began := time.Now()
	got, _ := j.tryAcquire(2, false)
	require.True(t, got)
	take(t, l, 2, true)
	got, _ = j.tryAcquire(1, false)
	require.True(t, got)
	got, wait := j.tryAcquire(1, false)
	require.False(t, got)
	require.Positive(t, wait)
	require.LessOrEqual(t, wait, 2003*time.Millisecond)
	r := take(t, l, 1, false)
	require.Positive(t, r.RetryAfter)
	require.LessOrEqual(t, r.RetryAfter, 2*time.Second)

	require.NoError(t, l.WaitN(within(t, patience), 5))
	require.GreaterOrEqual(t, time.Since(began), 1990*time.Millisecond)
	got, _ = j.tryAcquire(1, false)
	require.False(t, got, "Java sees what Go took")
	value, permits := j.keys()
	require.Equal(t, "0", rdb.Get(ctx, value).Val())
	require.Equal(t, int64(1), rdb.ZCard(ctx, permits).Val())

	// Reservations are entries with a time to come; Redisson only counts them.
	res, err := l.Reserve(ctx, 2)
	require.NoError(t, err)
	require.Positive(t, res.Delay())
	got, wait = j.tryAcquire(1, false)
	require.False(t, got)
	require.Positive(t, wait)
}

func TestRedisson_Defects(t *testing.T) {
	t.Parallel()

	t.Run("R1: a script executed twice charges once, and what a peer's retry lost is found", func(t *testing.T) {
		t.Parallel()
		l, c, rdb, name := limiter(t, perSeconds(10, 60), ratelimit.Overall)
		keys := ratelimit.LogKeys(c, name)
		m := ratelimit.Member([16]byte{7}, 3)
		for range 2 {
			reply, err := scripts.RateLog.Run(t.Context(), rdb, keys, "10", 0, m).Int64Slice()
			require.NoError(t, err)
			require.Equal(t, []int64{10, 60_000, 7}, reply[:3])
			require.Zero(t, reply[4])
		}
		require.Equal(t, int64(1), rdb.ZCard(t.Context(), keys[3]).Val())
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
			l, c, rdb, name := limiter(t, perSeconds(10, 60), ratelimit.Overall)
			require.NoError(t, rdb.Set(t.Context(), ratelimit.LogKeys(c, name)[1], value, 0).Err())
			take(t, l, 10, true)
			take(t, l, 1, false)
		}
	})

	t.Run("R2: also if it goes stale while this process knows the limit", func(t *testing.T) {
		t.Parallel()
		l, c, rdb, name := limiter(t, perSeconds(10, 60), ratelimit.Overall)
		take(t, l, 1, true)
		keys := ratelimit.LogKeys(c, name)
		require.NoError(t, rdb.Set(t.Context(), keys[1], 2, 0).Err())
		require.NoError(t, rdb.Del(t.Context(), keys[3]).Err())
		take(t, l, 10, true)
		take(t, l, 1, false)
	})

	t.Run("a log without its value is counted", func(t *testing.T) {
		t.Parallel()
		l, c, rdb, name := limiter(t, perSeconds(10, 60), ratelimit.Overall)
		take(t, l, 4, true)
		require.NoError(t, rdb.Del(t.Context(), ratelimit.LogKeys(c, name)[1]).Err())
		requireLeft(t, l, 6)
		take(t, l, 6, true)
		take(t, l, 1, false)
	})

	t.Run("entries far in the future, of a clock that was wrong, do not lock out for ever", func(t *testing.T) {
		t.Parallel()
		l, c, rdb, name := limiter(t, perSeconds(10, 1), ratelimit.Overall)
		take(t, l, 10, true)
		keys := ratelimit.LogKeys(c, name)
		require.NoError(t, rdb.Del(t.Context(), keys[3]).Err())
		require.NoError(t, rdb.ZAdd(t.Context(), keys[3], redis.Z{
			Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: ratelimit.Member([16]byte{1}, 10),
		}).Err())
		take(t, l, 10, true)
	})

	t.Run("R6: n is not cut to 32 bits", func(t *testing.T) {
		t.Parallel()
		c, rdb, _, name := shared(t)
		java{t: t, rdb: rdb, name: name}.trySetRate(1<<40, time.Minute)
		l := c.Limiter(name)
		_, err := l.AllowN(t.Context(), 1<<32)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		r := take(t, l, 1<<32-1, true)
		require.Equal(t, int64(1<<40-(1<<32-1)), r.Remaining)
	})

	t.Run("keys that hold something else are named", func(t *testing.T) {
		t.Parallel()
		for _, which := range []int{1, 3} {
			l, c, rdb, name := limiter(t, perSeconds(10, 1), ratelimit.Overall)
			require.NoError(t, rdb.LPush(t.Context(), ratelimit.LogKeys(c, name)[which], 1).Err())
			_, err := l.Allow(t.Context())
			require.ErrorIs(t, err, ratelimit.ErrWrongKind)
			require.NotContains(t, err.Error(), "script")
		}
	})
}

// No clock of a client reaches Redis: with whatever is sent, its time is not.
func TestRatelimit_SendsNoTimeOfItsOwn(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	seen := &recorder{}
	rdb.AddHook(seen)
	c, name, ctx := newClient(t, rdb), redistest.Name(t), t.Context()
	k, l := c.Keyed("k", ratelimit.PerSecond(3)), c.Limiter(name)
	require.NoError(t, l.SetRate(ctx, ratelimit.PerSecond(3), ratelimit.Overall))
	for range 5 {
		_, _ = k.Allow(ctx, name)
		_, _ = l.Allow(ctx)
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
