package ratelimit_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// bothSidesCountTogether has Go and Java take from one limiter in turn.
func bothSidesCountTogether(t *testing.T, c *ratelimit.Client, rdb redis.UniversalClient) {
	ctx, name := t.Context(), redistest.Name(t)
	j, l := java{t: t, rdb: rdb, name: name}, c.StoredLimiter(name)
	require.True(t, j.trySetRate(5, 4*time.Second, ratelimit.Overall, 0))
	cfg, err := l.Config(ctx)
	require.NoError(t, err)
	require.Equal(t, perSeconds(5, 4), cfg.Limit)
	ok, err := l.TrySetRate(ctx, perSeconds(9, 1))
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
	require.LessOrEqual(t, wait, 4003*time.Millisecond)
	r := take(t, l, 1, false)
	require.Positive(t, r.RetryAfter)
	require.LessOrEqual(t, r.RetryAfter, 4*time.Second)

	require.NoError(t, l.WaitN(within(t, patience), 5))
	require.GreaterOrEqual(t, time.Since(began), 3990*time.Millisecond)
	require.NoError(t, newWheel(t).Sleep(ctx, 2*time.Millisecond)) // Java counts in whole milliseconds
	got, _ = j.tryAcquire(1, false)
	require.False(t, got, "Java sees what Go took")
	require.Equal(t, "0", rdb.Get(ctx, j.keys()[1]).Val())
	require.Equal(t, int64(1), rdb.ZCard(ctx, j.keys()[3]).Val())

	// Reservations are entries with a time to come; Redisson only counts them.
	res, err := l.Reserve(ctx, 2)
	require.NoError(t, err)
	require.Positive(t, res.Delay())
	got, wait = j.tryAcquire(1, false)
	require.False(t, got)
	require.Positive(t, wait)
}

// javaAndGo are both ends of one limiter.
func javaAndGo(t *testing.T, c *ratelimit.Client, rdb redis.UniversalClient) (java, *ratelimit.StoredLimiter) {
	name := redistest.Name(t)
	return java{t: t, rdb: rdb, name: name, id: "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"}, c.StoredLimiter(name)
}

func (j java) take(n int64, want bool) {
	j.t.Helper()
	got, _ := j.tryAcquire(n, false)
	require.Equal(j.t, want, got)
}

// bothSidesConfigure has Go and Java change one limit in turn.
func bothSidesConfigure(t *testing.T, c *ratelimit.Client, rdb redis.UniversalClient) {
	ctx := t.Context()

	t.Run("what Go sets holds in Java", func(t *testing.T) {
		t.Parallel()
		j, l := javaAndGo(t, c, rdb)
		_, err := j.acquire(1, false)
		require.ErrorContains(t, err, "not initialized")
		ok, err := l.TrySetRate(ctx, perSeconds(10, 60))
		require.NoError(t, err)
		require.True(t, ok)
		require.False(t, j.trySetRate(99, time.Second, ratelimit.Overall, 0))
		require.Equal(t, int64(10), j.available())
		j.take(7, true)
		_, err = j.acquire(11, false)
		require.ErrorContains(t, err, "cannot exceed")

		require.NoError(t, l.SetRate(ctx, perSeconds(20, 60), ratelimit.WithState()))
		require.Equal(t, int64(13), j.available())
		require.NoError(t, l.SetRate(ctx, perSeconds(5, 60), ratelimit.WithState()))
		require.Equal(t, int64(-2), j.available(), "the debt is kept")
		j.take(1, false)
		require.NoError(t, l.SetRate(ctx, perSeconds(5, 60)))
		require.Equal(t, int64(5), j.available())
		j.take(5, true)
		ok, err = l.Delete(ctx)
		require.NoError(t, err)
		require.True(t, ok)
		require.Zero(t, j.left())
		_, err = j.acquire(1, false)
		require.ErrorContains(t, err, "not initialized")
	})

	t.Run("what Java sets holds in Go", func(t *testing.T) {
		t.Parallel()
		j, l := javaAndGo(t, c, rdb)
		require.False(t, j.updateRate(10, time.Minute, ratelimit.Overall, true))
		_, err := l.Peek(ctx)
		require.ErrorIs(t, err, ratelimit.ErrNotSet)
		require.True(t, j.trySetRate(10, time.Minute, ratelimit.Overall, 0))
		take(t, l, 7, true)
		require.True(t, j.updateRate(20, time.Minute, ratelimit.Overall, true))
		requireLeft(t, l, 13)
		require.True(t, j.updateRate(20, 2*time.Minute, ratelimit.Overall, false))
		requireLeft(t, l, 20)
		take(t, l, 20, true)
		j.setRate(5, time.Minute, ratelimit.Overall, 2*time.Minute)
		requireLeft(t, l, 5)
		cfg, err := l.Config(ctx)
		require.NoError(t, err)
		require.Equal(t, ratelimit.Config{Limit: perSeconds(5, 60), KeepAlive: 2 * time.Minute}, cfg)
		require.True(t, j.delete())
		require.False(t, j.delete())
		_, err = l.Peek(ctx)
		require.ErrorIs(t, err, ratelimit.ErrNotSet)
	})

	t.Run("a scope that is changed to Overall starts anew, and under PerClient each client has a count", func(t *testing.T) {
		t.Parallel()
		j, l := javaAndGo(t, c, rdb)
		require.True(t, j.trySetRate(9, time.Minute, ratelimit.PerClient, 0))
		take(t, l, 9, true)
		j.take(9, true)
		require.True(t, j.updateRate(10, time.Minute, ratelimit.Overall, true))
		requireSoonLeft(t, l, 10)
		take(t, l, 5, true)
		j.take(5, true)
		requireLeft(t, l, 0)
		require.True(t, j.updateRate(10, time.Minute, ratelimit.PerClient, true))
		requireSoonLeft(t, l, 1) // Java resets its own count, not those of other clients
		require.Equal(t, int64(10), j.available())
		j.take(9, true)
		require.NoError(t, l.SetRate(ctx, perSeconds(10, 60), ratelimit.WithScope(ratelimit.PerClient)))
		take(t, l, 6, true)
		requireLeft(t, l, 4)
		require.NoError(t, l.SetRate(ctx, perSeconds(8, 60), ratelimit.WithScope(ratelimit.Overall), ratelimit.WithState()))
		require.Equal(t, int64(8), j.available())
		requireLeft(t, l, 8)
	})

	t.Run("what Go returns can be taken in Java, and what Java releases in Go", func(t *testing.T) {
		t.Parallel()
		j, l := javaAndGo(t, c, rdb)
		require.True(t, j.trySetRate(5, time.Minute, ratelimit.Overall, 0))
		r := take(t, l, 3, true)
		j.take(2, true)
		j.take(1, false)
		given, err := l.Return(ctx, r)
		require.NoError(t, err)
		require.True(t, given)
		require.Equal(t, int64(3), j.available())
		j.take(2, true)
		take(t, l, 1, true)
		j.take(1, false)
		j.release(2)
		take(t, l, 2, true)
		j.release(0)
		j.take(1, false)
		j.release(100)
		take(t, l, 5, true)
		j.take(1, false)

		// Java leaves what it releases in the log, where it counts again when that entry leaves. Who counts
		// the log goes by the log.
		j.release(5)
		requireLeft(t, newClient(t, rdb).StoredLimiter(j.name), 0)
	})
}

// bothSidesKeepAlive has Go and Java keep one limiter alive, or let it go.
func bothSidesKeepAlive(t *testing.T, c *ratelimit.Client, rdb redis.UniversalClient) {
	ctx := t.Context()
	ttl := func(t *testing.T, j java) time.Duration {
		least := time.Duration(1<<63 - 1)
		for _, at := range []int{0, 1, 3} {
			d, err := rdb.PTTL(ctx, j.keys()[at]).Result()
			require.NoError(t, err)
			least = min(least, d)
		}
		return least
	}
	short := func(t *testing.T, j java) {
		for _, key := range j.keys() {
			require.NoError(t, rdb.PExpire(ctx, key, time.Minute).Err())
		}
	}

	t.Run("a keep-alive set by either side is renewed by both", func(t *testing.T) {
		t.Parallel()
		for _, byJava := range []bool{true, false} {
			j, l := javaAndGo(t, c, rdb)
			if byJava {
				require.True(t, j.trySetRate(10, time.Minute, ratelimit.Overall, 10*time.Minute))
			} else {
				require.NoError(t, l.SetRate(ctx, perSeconds(10, 60), ratelimit.WithKeepAlive(10*time.Minute)))
			}
			take(t, l, 1, true)
			require.Greater(t, ttl(t, j), 5*time.Minute)
			short(t, j)
			j.take(1, true)
			require.Greater(t, ttl(t, j), 5*time.Minute)
			short(t, j)
			take(t, l, 1, true)
			require.Greater(t, ttl(t, j), 5*time.Minute)
			short(t, j)
			require.NoError(t, l.Wait(ctx))
			require.Greater(t, ttl(t, j), 5*time.Minute)
		}
	})

	t.Run("what Java lets expire takes along what Go makes later", func(t *testing.T) {
		t.Parallel()
		j, l := javaAndGo(t, c, rdb)
		require.True(t, j.trySetRate(10, time.Second, ratelimit.Overall, 0))
		j.expire(4 * time.Second)
		for range 3 {
			take(t, l, 1, true)
			require.Positive(t, ttl(t, j))
			require.LessOrEqual(t, ttl(t, j), 4*time.Second)
		}
		require.NoError(t, newWheel(t).Sleep(ctx, 4200*time.Millisecond))
		require.Zero(t, j.left())
		_, err := l.Peek(ctx)
		require.ErrorIs(t, err, ratelimit.ErrNotSet)
	})

	t.Run("R2: a value that Java leaves behind without an expiry does not count", func(t *testing.T) {
		t.Parallel()
		j, l := javaAndGo(t, c, rdb)
		require.True(t, j.trySetRate(10, 3*time.Second, ratelimit.Overall, 3*time.Second))
		j.take(10, true)
		require.NoError(t, rdb.Persist(ctx, j.keys()[1]).Err()) // as its availablePermits does
		require.NoError(t, newWheel(t).Sleep(ctx, 3200*time.Millisecond))
		require.Equal(t, int64(1), j.left())
		require.True(t, j.trySetRate(10, time.Minute, ratelimit.Overall, time.Minute))
		take(t, l, 10, true)
		take(t, l, 1, false)
	})
}
