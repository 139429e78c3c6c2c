package ratelimit_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/testsize"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// Guarantees: Q1, Q6.
func TestPerClient_EachClientHasACount(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	ours, rdb, name := storedLimiter(t, perSeconds(10, 3600), ratelimit.PerClient)
	theirs := newClient(t, rdb).StoredLimiter(name)
	for _, l := range []*ratelimit.StoredLimiter{ours, theirs} {
		take(t, l, 6, true)
		take(t, l, 5, false)
		r, err := l.AllowUpTo(ctx, 9)
		require.NoError(t, err)
		require.EqualValues(t, 4, r.Granted)
		given, err := l.Return(ctx, r)
		require.True(t, err == nil && given)
		requireLeft(t, l, 4)
		require.NoError(t, l.WaitN(ctx, 3))
		require.ErrorIs(t, l.WaitN(ctx, 11), ratelimit.ErrExceedsLimit)
		reserved, err := l.Reserve(ctx, 1)
		require.NoError(t, err)
		require.Zero(t, reserved.Delay())
		_, err = l.Reserve(ctx, 1)
		require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
		requireLeft(t, l, 0)
	}
	require.Zero(t, rdb.Exists(ctx, ratelimit.LogKeys(name)[1:]...).Val(), "nothing is counted for all")
}

func TestPerClient_TheFirstCallAsksTwice(t *testing.T) {
	t.Parallel()
	c, rdb, trips, name := shared(t)
	take(t, newStoredLimiter(t, c, perSeconds(1, 1), ratelimit.PerClient), 1, true) // tells the server the scripts
	require.NoError(t, newClient(t, rdb).StoredLimiter(name).SetRate(t.Context(), perSeconds(10, 3600), ratelimit.WithScope(ratelimit.PerClient)))
	l := c.StoredLimiter(name)
	require.EqualValues(t, 2, trips.trips(func() { take(t, l, 1, true) }), "which learns the scope")
	require.EqualValues(t, 1, trips.trips(func() { take(t, l, 1, true) }))
	require.Zero(t, trips.trips(func() { require.NoError(t, l.WaitN(t.Context(), 0)) }))
}

// The counts of clients that are gone do not stay, and no count ends while an entry is in force.
// Guarantees: Q6, Q18.
func TestPerClient_CountsExpire(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l, rdb, name := storedLimiter(t, perSeconds(2, 50), ratelimit.PerClient)
	for range 2 {
		began := time.Now()
		take(t, l, 1, true)
		keys := rdb.Keys(ctx, "{"+name+"}:*").Val()
		require.Len(t, keys, 2)
		for _, key := range keys {
			left := rdb.PTTL(ctx, key).Val()
			require.LessOrEqual(t, left, 110*time.Second, key)
			require.GreaterOrEqual(t, left, 110*time.Second-time.Since(began)-time.Millisecond, key)
		}
	}
	require.EqualValues(t, -1, rdb.PTTL(ctx, name).Val(), "the limit stays")
}

func TestPerClient_UseKeepsTheLimitAlive(t *testing.T) {
	t.Parallel()
	l, rdb, name := storedLimiter(t, perSeconds(2, 1), ratelimit.PerClient)
	require.NoError(t, l.SetRate(t.Context(), perSeconds(2, 1), ratelimit.WithScope(ratelimit.PerClient), ratelimit.WithKeepAlive(time.Hour)))
	require.True(t, rdb.PExpire(t.Context(), name, time.Minute).Val())
	take(t, l, 1, true)
	require.Greater(t, rdb.PTTL(t.Context(), name).Val(), 59*time.Minute)
}

func TestStoredLimiter_AChangeWithoutAScopeKeepsIt(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for _, scope := range scopes {
		l, _, _ := storedLimiter(t, perSeconds(3, 60), scope)
		take(t, l, 2, true)
		for rate, opts := range [][]ratelimit.SetOption{{ratelimit.WithState()}, nil} {
			require.NoError(t, l.SetRate(ctx, perSeconds(int64(5+rate), 60), opts...))
			ok, err := l.UpdateRate(ctx, perSeconds(int64(5+rate), 60), opts...)
			require.True(t, err == nil && ok)
			cfg, err := l.Config(ctx)
			require.NoError(t, err)
			require.Equal(t, scope, cfg.Scope)
			requireSoonLeft(t, l, []int64{3, 6}[rate])
		}
	}
	c, _, _, name := shared(t)
	require.NoError(t, c.StoredLimiter(name).SetRate(ctx, perSeconds(3, 60)))
	cfg, err := c.StoredLimiter(name).Config(ctx)
	require.NoError(t, err)
	require.Equal(t, ratelimit.Overall, cfg.Scope)
}

// Redisson sets no epoch.
// Guarantees: Q6.
func TestPerClient_ALimitOfJava(t *testing.T) {
	t.Parallel()
	c, rdb, _, name := shared(t)
	l, ctx := c.StoredLimiter(name), t.Context()
	require.NoError(t, rdb.HSet(ctx, name, "rate", 3, "interval", 3_600_000, "type", 1, "keepAliveTime", 0).Err())
	take(t, l, 2, true)
	require.NoError(t, rdb.HSet(ctx, name, "rate", 5).Err())
	requireSoonLeft(t, l, 3)
	require.NoError(t, newClient(t, rdb).StoredLimiter(name).SetRate(ctx, perSeconds(3, 3600), ratelimit.WithScope(ratelimit.PerClient)))
	requireSoonLeft(t, l, 3)
	take(t, l, 3, true)
}

// Keys of the wrong scope change nothing.
func TestPerClient_TheScriptRefusesTheKeysOfTheOtherScope(t *testing.T) {
	t.Parallel()
	_, rdb, _, name := shared(t)
	keys, m := ratelimit.LogKeys(name), ratelimit.Member([16]byte{7}, 1)
	for scope, refused := range []string{"OVERALL", "PERCLIENT"} {
		require.NoError(t, rdb.HSet(t.Context(), name, "rate", 3, "interval", 1000, "type", scope).Err())
		err := scripts.RateLog.Run(t.Context(), rdb, keys, "3", -1, 0, 1-scope, 0, m).Err()
		require.True(t, redis.HasErrorPrefix(err, refused), err)
		require.EqualValues(t, 1, rdb.Exists(t.Context(), keys...).Val())
	}
}

// A value that is lost does not lose the log, and one in an unknown form is counted again.
func TestPerClient_CountsTheLogAgain(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"", "nonsense", "3", "3@x", "99@"} {
		l, rdb, name := storedLimiter(t, perSeconds(3, 3600), ratelimit.PerClient)
		take(t, l, 2, true)
		for _, key := range rdb.Keys(t.Context(), "{"+name+"}:value:*").Val() {
			require.NoError(t, rdb.Del(t.Context(), key).Err())
			if value == "99@" {
				value += rdb.HGet(t.Context(), name, "epoch").Val()
			}
			if value != "" {
				require.NoError(t, rdb.Set(t.Context(), key, value, 0).Err())
			}
		}
		take(t, l, 2, false)
		take(t, l, 1, true)
	}
}

func TestPerClient_ThePolicyDecidesWhileRedisIsDown(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	server := redistest.Start(t)
	ctx := t.Context()
	for what, policy := range map[string]ratelimit.Policy{"closed": ratelimit.FailClosed(), "share": ratelimit.LocalShare(2)} {
		c := newClient(t, server.Client(t, impatient), ratelimit.WithPolicy(policy), ratelimit.WithBreaker(1, 20*time.Millisecond))
		l := c.StoredLimiter("l")
		require.NoError(t, l.SetRate(ctx, perSeconds(10, 3600), ratelimit.WithScope(ratelimit.PerClient)))
		take(t, l, 1, true)
		server.Pause()
		var granted int64
		for range 20 {
			r, err := l.Allow(ctx)
			require.True(t, what == "share" && err == nil || what == "closed" && errors.Is(err, ratelimit.ErrUnavailable), "%v", err)
			require.Equal(t, ratelimit.SourceDegraded, r.Source)
			granted += r.Granted
		}
		server.Resume()
		require.Equal(t, map[string]int64{"closed": 0, "share": 5}[what], granted)
		await(t, "the circuit to close", func() bool { return !c.Stats().Down })
		r, err := l.Peek(ctx)
		require.NoError(t, err)
		require.GreaterOrEqual(t, r.Remaining, int64(8), "the call that met the pause may have taken one")
	}
}

// A probe of a client's count is refused where its decisions are.
func TestPerClient_TheProbeUsesTheKeysOfTheClient(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	server := redistest.Start(t)
	ctx, admin := t.Context(), server.Client(t)
	c := newClient(t, server.Client(t, impatient), ratelimit.WithBreaker(1, 20*time.Millisecond))
	l := c.StoredLimiter("l")
	require.NoError(t, l.SetRate(ctx, perSeconds(10, 3600), ratelimit.WithScope(ratelimit.PerClient)))
	take(t, l, 1, true)
	before := strings.Join(admin.Keys(ctx, "*").Val(), " ")
	server.Pause()
	_, err := l.Allow(ctx)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	server.Resume()
	await(t, "the circuit to close", func() bool { return !c.Stats().Down })
	require.Len(t, strings.Fields(before), 3)
	require.EqualValues(t, 3, admin.DBSize(ctx).Val(), "the probe wrote no key of the other scope")
	take(t, l, 8, true)
}

// answer receives what a wait without a deadline ended with.
func answer(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-within(t, patience).Done():
		require.Fail(t, "no waiter was told")
		return nil
	}
}

// Guarantees: Q6.
func TestPerClient_AChangeBy(t *testing.T) {
	t.Parallel()
	setup := func(t *testing.T, limit ratelimit.Limit) (ours, theirs *ratelimit.StoredLimiter) {
		ours, rdb, name := storedLimiter(t, limit, ratelimit.PerClient)
		theirs = newClient(t, rdb).StoredLimiter(name)
		take(t, ours, 1, true)
		return ours, theirs
	}

	t.Run("another process begins anew", func(t *testing.T) {
		t.Parallel()
		ours, theirs := setup(t, perSeconds(3, 3600))
		take(t, ours, 2, true)
		take(t, theirs, 3, true)
		require.NoError(t, theirs.SetRate(t.Context(), perSeconds(3, 3600), ratelimit.WithScope(ratelimit.PerClient)))
		requireSoonLeft(t, ours, 3)
		requireSoonLeft(t, theirs, 3)
		take(t, ours, 3, true)
		take(t, ours, 1, false)
	})

	t.Run("another process that keeps the state is seen by callers and waiters", func(t *testing.T) {
		t.Parallel()
		ours, theirs := setup(t, perSeconds(1, 3600))
		done := make(chan error, 2)
		for range 2 {
			ours.WaitFunc(t.Context(), 1, func(err error) { done <- err })
		}
		ok, err := theirs.UpdateRate(t.Context(), perSeconds(3, 3600), ratelimit.WithScope(ratelimit.PerClient), ratelimit.WithState())
		require.True(t, err == nil && ok)
		began := time.Now()
		require.NoError(t, answer(t, done))
		require.NoError(t, answer(t, done))
		require.Less(t, time.Since(began), 10*time.Second, "after about a second")
		requireSoonLeft(t, ours, 0)
		require.NoError(t, theirs.SetRate(t.Context(), perSeconds(10, 3600), ratelimit.WithScope(ratelimit.PerClient), ratelimit.WithState()))
		requireSoonLeft(t, ours, 7)
	})

	t.Run("another process that deletes it is seen by callers and waiters", func(t *testing.T) {
		t.Parallel()
		ours, theirs := setup(t, perSeconds(1, 3600))
		done := make(chan error, 1)
		ours.WaitFunc(t.Context(), 1, func(err error) { done <- err })
		ok, err := theirs.Delete(t.Context())
		require.True(t, err == nil && ok)
		require.ErrorIs(t, answer(t, done), ratelimit.ErrNotSet)
		_, err = ours.Allow(t.Context())
		require.ErrorIs(t, err, ratelimit.ErrNotSet)
		_, err = ours.Reserve(t.Context(), 1)
		require.ErrorIs(t, err, ratelimit.ErrNotSet)
		ok, err = theirs.TrySetRate(t.Context(), perSeconds(1, 3600), ratelimit.WithScope(ratelimit.PerClient))
		require.True(t, err == nil && ok)
		take(t, ours, 1, true) // it begins anew
		take(t, ours, 1, false)
	})

	t.Run("another process that makes it one count for all begins anew", func(t *testing.T) {
		t.Parallel()
		ours, theirs := setup(t, perSeconds(1, 3600))
		require.NoError(t, theirs.SetRate(t.Context(), perSeconds(5, 3600), ratelimit.WithScope(ratelimit.Overall), ratelimit.WithState()))
		take(t, theirs, 2, true)
		requireSoonLeft(t, ours, 3)
		require.Equal(t, ratelimit.SourceRedis, take(t, ours, 3, true).Source)
		require.NoError(t, theirs.SetRate(t.Context(), perSeconds(5, 3600), ratelimit.WithScope(ratelimit.PerClient), ratelimit.WithState()))
		requireSoonLeft(t, ours, 5)
	})

	t.Run("this client is seen at once, also by concurrent callers", func(t *testing.T) {
		t.Parallel()
		ours, _ := setup(t, perSeconds(1, 3600))
		ctx, cancel := context.WithCancel(t.Context())
		var asking sync.WaitGroup
		for range 4 {
			asking.Go(func() {
				for ctx.Err() == nil {
					_, _ = ours.Allow(ctx)
				}
			})
		}
		for rate := range int64(300) {
			require.NoError(t, ours.SetRate(t.Context(), perSeconds(rate+1, 3600), ratelimit.WithScope(ratelimit.Scope(rate/50%2))))
			r, err := ours.Peek(t.Context())
			require.NoError(t, err)
			require.Equal(t, rate+1, r.Limit)
		}
		cancel()
		asking.Wait()
	})

	t.Run("this client that does not take place grants nothing", func(t *testing.T) {
		t.Parallel()
		ours, _ := setup(t, perSeconds(1, 3600))
		for _, scope := range scopes {
			ok, err := ours.TrySetRate(t.Context(), perSeconds(1, 3600), ratelimit.WithScope(scope))
			require.True(t, err == nil && !ok)
			take(t, ours, 1, false)
		}
	})

	t.Run("this client that begins anew leaves nothing to return", func(t *testing.T) {
		t.Parallel()
		l, _, _ := storedLimiter(t, perSeconds(3, 3600), ratelimit.PerClient)
		r := take(t, l, 2, true)
		require.NoError(t, l.SetRate(t.Context(), perSeconds(3, 3600), ratelimit.WithScope(ratelimit.PerClient)))
		take(t, l, 1, true)
		given, err := l.Return(t.Context(), r)
		require.True(t, err == nil && !given)
		requireLeft(t, l, 2)
	})
}

// Guarantees: Q1.
func TestPerClient_ConcurrentCallersAreExact(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	ctx, l := t.Context(), c.StoredLimiter(name)
	require.NoError(t, l.SetRate(ctx, perSeconds(5000, 3600), ratelimit.WithScope(ratelimit.PerClient)))
	var granted, returned atomic.Int64
	var all sync.WaitGroup
	each := testsize.Of(200, 500)
	for g := range 32 {
		all.Go(func() {
			for i := range each {
				r, err := l.AllowUpTo(ctx, int64(1+(g+i)%3))
				if err != nil {
					t.Error(err)
					return
				}
				granted.Add(r.Granted)
				if i%10 == 0 {
					if given, err := l.Return(ctx, r); err == nil && given {
						returned.Add(r.Granted)
					}
				}
			}
		})
	}
	all.Wait()
	r, err := l.Peek(ctx)
	require.NoError(t, err)
	require.Equal(t, int64(5000), granted.Load()-returned.Load()+r.Remaining)
	require.Equal(t, int64(32*each), c.Stats().Allowed+c.Stats().Denied, "without the Peek")
}
