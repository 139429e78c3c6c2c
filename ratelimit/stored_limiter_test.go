package ratelimit_test

import (
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

func perSeconds(n int64, seconds float64) ratelimit.Limit {
	return ratelimit.Limit{Rate: n, Per: time.Duration(seconds * float64(time.Second)), Burst: n}
}

// storedLimiter returns a StoredLimiter with a limit, on a client of its own.
func storedLimiter(t *testing.T, limit ratelimit.Limit, scope ratelimit.Scope) (*ratelimit.StoredLimiter, *redis.Client, string) {
	t.Helper()
	c, rdb, _, name := shared(t)
	l := c.StoredLimiter(name)
	ok, err := l.TrySetRate(t.Context(), limit, ratelimit.WithScope(scope))
	require.NoError(t, err)
	require.True(t, ok)
	return l, rdb, name
}

func requireLeft(t *testing.T, l *ratelimit.StoredLimiter, want int64) {
	t.Helper()
	r, err := l.Peek(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, r.Remaining)
	require.Equal(t, want > 0, r.Allowed)
}

// requireSoonLeft is for what another process has changed under the scope PerClient.
func requireSoonLeft(t *testing.T, l *ratelimit.StoredLimiter, want int64) {
	t.Helper()
	redistest.Poll(t, func() bool {
		r, err := l.Peek(t.Context())
		return err == nil && r.Remaining == want
	})
}

func take(t *testing.T, l *ratelimit.StoredLimiter, n int64, want bool) ratelimit.Result {
	t.Helper()
	r, err := l.AllowN(t.Context(), n)
	require.NoError(t, err)
	require.Equal(t, want, r.Allowed, "%+v", r)
	return r
}

func limiterConfiguration(t *testing.T, c *ratelimit.Client, rdb redis.UniversalClient) {
	ctx, name := t.Context(), redistest.Name(t)
	l := c.StoredLimiter(name)

	_, err := l.Allow(ctx)
	require.ErrorIs(t, err, ratelimit.ErrNotSet)
	require.NotContains(t, err.Error(), "script")
	require.ErrorIs(t, l.Wait(ctx), ratelimit.ErrNotSet)
	_, err = l.Config(ctx)
	require.ErrorIs(t, err, ratelimit.ErrNotSet)
	_, err = l.Reserve(ctx, 1)
	require.ErrorIs(t, err, ratelimit.ErrNotSet)
	ok, err := l.UpdateRate(ctx, ratelimit.PerSecond(1))
	require.NoError(t, err)
	require.False(t, ok, "there is nothing to update, and nothing is made")
	ok, err = l.Delete(ctx)
	require.NoError(t, err)
	require.False(t, ok)

	ok, err = l.TrySetRate(ctx, perSeconds(5, 60), ratelimit.WithScope(ratelimit.PerClient), ratelimit.WithKeepAlive(2*time.Minute))
	require.NoError(t, err)
	require.True(t, ok)
	ok, err = l.TrySetRate(ctx, perSeconds(20, 60))
	require.NoError(t, err)
	require.False(t, ok)
	cfg, err := l.Config(ctx)
	require.NoError(t, err)
	require.Equal(t, ratelimit.Config{Limit: perSeconds(5, 60), Scope: ratelimit.PerClient, KeepAlive: 2 * time.Minute}, cfg)

	require.NoError(t, l.SetRate(ctx, perSeconds(10, 60), ratelimit.WithScope(ratelimit.Overall)))
	require.Equal(t, time.Duration(-1), rdb.PTTL(ctx, name).Val(), "R4: without a keep-alive it stays")
	take(t, l, 7, true)
	requireLeft(t, l, 3)
	ok, err = l.UpdateRate(ctx, perSeconds(20, 60), ratelimit.WithState())
	require.NoError(t, err)
	require.True(t, ok)
	requireLeft(t, l, 13)
	require.NoError(t, l.SetRate(ctx, perSeconds(5, 60), ratelimit.WithState()))
	requireLeft(t, l, 0)
	require.NoError(t, l.SetRate(ctx, perSeconds(20, 60)))
	requireLeft(t, l, 20)
	take(t, l, 7, true)
	require.NoError(t, l.SetRate(ctx, perSeconds(20, 60), ratelimit.WithScope(ratelimit.PerClient), ratelimit.WithState()))
	requireLeft(t, l, 20)
	_, err = l.AllowN(ctx, 21)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	require.ErrorIs(t, l.WaitN(ctx, 21), ratelimit.ErrExceedsLimit)
	requireLeft(t, l, 20)
	ok, err = l.Delete(ctx)
	require.NoError(t, err)
	require.True(t, ok)
	keys := 0
	for _, key := range ratelimit.LogKeys(name) {
		keys += int(rdb.Exists(ctx, key).Val())
	}
	require.Zero(t, keys)
}

// A request that is granted in part makes one entry, which a repeated script finds.
func TestStoredLimiter_AllowUpToMakesOneEntry(t *testing.T) {
	t.Parallel()
	l, rdb, name := storedLimiter(t, perSeconds(10, 60), ratelimit.Overall)
	keys := ratelimit.LogKeys(name)
	take(t, l, 3, true)
	m := ratelimit.Member([16]byte{7}, 100)
	for range 3 {
		reply, err := scripts.RateLog.Run(t.Context(), rdb, keys, "10", -3, 0, 0, 0, m).Int64Slice()
		require.NoError(t, err)
		require.Equal(t, []int64{0, 0, 7}, []int64{reply[2], reply[5], reply[6]})
		require.EqualValues(t, 2, rdb.ZCard(t.Context(), keys[2]).Val())
	}
	reply, err := scripts.RateLog.Run(t.Context(), rdb, keys, "10", -3, 0, 0, 0, ratelimit.Member([16]byte{8}, 100)).Int64Slice()
	require.NoError(t, err)
	require.Less(t, reply[5], int64(-2), "until one permit is left")
	require.EqualValues(t, 1, reply[6])
	require.EqualValues(t, 2, rdb.ZCard(t.Context(), keys[2]).Val())
}

func TestStoredLimiter_AllowUpTo(t *testing.T) {
	t.Parallel()
	for n := int64(1); n <= 12; n++ {
		l, _, _ := storedLimiter(t, perSeconds(7, 60), ratelimit.Overall)
		r, err := l.AllowUpTo(t.Context(), n)
		require.NoError(t, err)
		require.Equal(t, min(n, 7), r.Granted)
		require.Equal(t, 7-min(n, 7), r.Remaining)
		r, err = l.AllowUpTo(t.Context(), 100)
		require.NoError(t, err)
		require.Equal(t, 7-min(n, 7), r.Granted)
		require.Equal(t, n < 7, r.Allowed)
	}
	l, _, _ := storedLimiter(t, perSeconds(7, 60), ratelimit.Overall)
	r, err := l.AllowUpTo(t.Context(), 0)
	require.NoError(t, err)
	require.Zero(t, r.Granted)
	require.True(t, r.Allowed)
	require.Equal(t, int64(7), r.Remaining)
	_, err = l.AllowUpTo(t.Context(), -1)
	require.ErrorIs(t, err, cogwheel.ErrInvalid)
}

func TestStoredLimiter_Reserve(t *testing.T) {
	t.Parallel()
	l, _, _ := storedLimiter(t, perSeconds(3, 30), ratelimit.Overall)
	ctx := t.Context()
	take(t, l, 2, true)
	now, err := l.Reserve(ctx, 1)
	require.NoError(t, err)
	require.Zero(t, now.Delay())
	later, err := l.Reserve(ctx, 3)
	require.NoError(t, err)
	require.Greater(t, later.Delay(), 20*time.Second)
	require.LessOrEqual(t, later.Delay(), 30*time.Second)
	last, err := l.Reserve(ctx, 1)
	require.NoError(t, err)
	require.Greater(t, last.Delay(), 50*time.Second)
	requireLeft(t, l, 0)
	r := take(t, l, 1, false)
	require.Greater(t, r.RetryAfter, 50*time.Second)
	_, err = l.Reserve(within(t, 10*time.Second), 1)
	require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
	_, err = l.Reserve(ctx, 4)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	given, err := last.Cancel(ctx)
	require.NoError(t, err)
	require.True(t, given)
	again, err := l.Reserve(ctx, 1)
	require.NoError(t, err)
	require.LessOrEqual(t, again.Delay(), last.Delay()+time.Second)
}

// Guarantees: Q1.
func TestStoredLimiter_ConcurrentCallersAreExact(t *testing.T) {
	t.Parallel()
	l, rdb, name := storedLimiter(t, perSeconds(500, 60), ratelimit.Overall)
	var mu sync.Mutex
	var granted int
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			for range 50 {
				if r, err := l.Allow(t.Context()); err == nil && r.Allowed {
					mu.Lock()
					granted++
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	require.Equal(t, 500, granted)
	require.Equal(t, int64(500), rdb.ZCard(t.Context(), ratelimit.LogKeys(name)[2]).Val())
	require.Equal(t, "0", rdb.Get(t.Context(), ratelimit.LogKeys(name)[1]).Val())
}

func TestStoredLimiter_BigRequestsAreNotOvertakenAndPayOneRoundTripMore(t *testing.T) {
	t.Parallel()
	c, _, trips, name := shared(t)
	l := c.StoredLimiter(name)
	ctx := within(t, patience)
	_, err := l.TrySetRate(ctx, perSeconds(20, 0.5))
	require.NoError(t, err)
	for range 20 {
		take(t, l, 1, true)
	}
	// R5: twenty entries have to leave, and Redisson asks once for each of them. The line asks twice, and more often if an
	// answer was slow: then it asks early.
	n := trips.trips(func() { require.NoError(t, l.WaitN(ctx, 20)) })
	t.Logf("%d round trips", n)
	require.LessOrEqual(t, n, int64(4))
}
