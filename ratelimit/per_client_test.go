package ratelimit_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// The scope PerClient is counted in the client's memory; Redis is asked for the limit.

func TestPerClient_ADecisionCostsNoRoundTrip(t *testing.T) {
	t.Parallel()
	c, rdb, trips, name := shared(t)
	ctx := t.Context()
	warm := newLimiter(t, c, perSeconds(1, 1), ratelimit.PerClient) // tells the server the scripts
	take(t, warm, 1, true)
	l := c.Limiter(name)
	require.NoError(t, l.SetRate(ctx, perSeconds(5000, 3600), ratelimit.PerClient))

	began := time.Now()
	require.Equal(t, int64(1), trips.trips(func() {
		require.Equal(t, ratelimit.SourceLocal, take(t, l, 1, true).Source)
	}), "the first asks for the limit")
	n := trips.trips(func() {
		for range 2000 {
			take(t, l, 1, true)
		}
		granted := take(t, l, 10, true)
		given, err := l.Return(ctx, granted)
		require.True(t, err == nil && given)
		requireLeft(t, l, 2999)
		require.NoError(t, l.WaitN(ctx, 99))
		require.ErrorIs(t, l.WaitN(ctx, 5001), ratelimit.ErrExceedsLimit)
		_, err = l.AllowN(ctx, 5001)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		done := make(chan error, 1)
		l.WaitFunc(ctx, 900, func(err error) { done <- err })
		require.NoError(t, <-done)
		reserved, err := l.Reserve(ctx, 1000)
		require.NoError(t, err)
		require.Zero(t, reserved.Delay())
		given, err = reserved.Cancel(ctx)
		require.True(t, err == nil && !given, "its time has come")
		_, err = l.Reserve(ctx, 1001)
		require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
		r, err := l.AllowUpTo(ctx, 9999)
		require.NoError(t, err)
		require.Equal(t, int64(1000), r.Granted)
		for range 1000 {
			r := take(t, l, 1, false)
			require.Greater(t, r.RetryAfter, 50*time.Minute)
		}
		require.ErrorIs(t, l.Wait(within(t, time.Minute)), ratelimit.ErrWouldExceedDeadline)
	})
	// In a time of so many seconds, one a second is at most one more.
	most := int64(time.Since(began)/time.Second) + 1
	require.LessOrEqual(t, n, most, "nothing, but for one look at the limit a second")
	t.Logf("%d round trips in %v", n, time.Since(began))
	require.Equal(t, []string{name}, rdb.Keys(ctx, "*"+name+"*").Val(), "nothing but the limit stands in Redis")
}

func TestPerClient_TheLimitIsLookedUpOnceASecondWhileItIsUsed(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	c, _, trips, name := shared(t)
	ctx, w, l := t.Context(), newWheel(t), ratelimit.Forgetful(c, time.Second).Limiter(name)
	require.NoError(t, l.SetRate(ctx, perSeconds(1000, 1), ratelimit.PerClient))
	began, before := time.Now(), trips.n.Load()
	busy := trips.trips(func() {
		for trips.n.Load() < before+5 && time.Since(began) < patience {
			_, err := l.Allow(ctx)
			require.NoError(t, err)
			require.NoError(t, w.Sleep(ctx, 5*time.Millisecond))
		}
	})
	require.LessOrEqual(t, busy, int64(time.Since(began)/time.Second)+3) // and the script itself
	require.GreaterOrEqual(t, busy, int64(5))
	require.LessOrEqual(t, trips.trips(func() { require.NoError(t, w.Sleep(ctx, 2500*time.Millisecond)) }), int64(1), "and not while it is not used")
	await(t, "the name to be forgotten", func() bool { return ratelimit.Names(c) == 0 })
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

func TestPerClient_TheLimitIsLookedUpOnceASecondHoweverOftenItChanges(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	c, _, trips, name := shared(t)
	ctx, w, l := t.Context(), newWheel(t), c.Limiter(name)
	require.NoError(t, l.SetRate(ctx, perSeconds(1, 3600), ratelimit.PerClient))
	granted := make(chan error, 100)
	for range 100 {
		l.WaitFunc(ctx, 1, func(err error) { granted <- err })
	}
	for range 20 {
		require.NoError(t, answer(t, granted))
		require.NoError(t, l.SetRate(ctx, perSeconds(1, 3600), ratelimit.PerClient))
	}
	require.NoError(t, w.Sleep(ctx, 1100*time.Millisecond))
	began, before := time.Now(), trips.n.Load()
	n := trips.trips(func() {
		await(t, "looks for the waiter", func() bool { return trips.n.Load() >= before+2 })
	})
	require.LessOrEqual(t, n, int64(time.Since(began)/time.Second)+1)
}

func TestPerClient_AChangeBy(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	setup := func(t *testing.T, limit ratelimit.Limit) (ours, theirs *ratelimit.Limiter) {
		ours, rdb, name := limiter(t, limit, ratelimit.PerClient)
		theirs = newClient(t, rdb).Limiter(name)
		take(t, ours, 1, true)
		return ours, theirs
	}

	t.Run("another process is seen by callers and waiters", func(t *testing.T) {
		t.Parallel()
		ours, theirs := setup(t, perSeconds(1, 3600))
		done := make(chan error, 2)
		for range 2 {
			ours.WaitFunc(t.Context(), 1, func(err error) { done <- err })
		}
		require.NoError(t, newWheel(t).Sleep(t.Context(), 1300*time.Millisecond)) // one look finds nothing new
		ok, err := theirs.UpdateRate(t.Context(), perSeconds(3, 3600), ratelimit.PerClient)
		require.True(t, err == nil && ok)
		began := time.Now()
		require.NoError(t, answer(t, done))
		require.NoError(t, answer(t, done))
		require.Less(t, time.Since(began), 10*time.Second, "after about a second")
		requireLeft(t, ours, 0)
		require.NoError(t, theirs.SetRate(t.Context(), perSeconds(10, 3600), ratelimit.PerClient))
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
		require.NoError(t, theirs.SetRate(t.Context(), perSeconds(1, 3600), ratelimit.PerClient))
		take(t, ours, 1, false) // what was granted counts until this client itself begins anew
	})

	t.Run("another process that makes it one count for all begins anew", func(t *testing.T) {
		t.Parallel()
		ours, theirs := setup(t, perSeconds(1, 3600))
		require.NoError(t, theirs.SetRate(t.Context(), perSeconds(5, 3600), ratelimit.Overall, ratelimit.WithState()))
		take(t, theirs, 2, true)
		requireSoonLeft(t, ours, 3)
		require.Equal(t, ratelimit.SourceRedis, take(t, ours, 3, true).Source)
		require.NoError(t, theirs.SetRate(t.Context(), perSeconds(5, 3600), ratelimit.PerClient, ratelimit.WithState()))
		requireLeft(t, ours, 5)
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
			require.NoError(t, ours.SetRate(t.Context(), perSeconds(rate+1, 3600), ratelimit.Scope(rate/50%2)))
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
			ok, err := ours.TrySetRate(t.Context(), perSeconds(1, 3600), scope)
			require.True(t, err == nil && !ok)
			take(t, ours, 1, false)
		}
	})

	t.Run("this client that begins anew leaves nothing to return", func(t *testing.T) {
		t.Parallel()
		l, _, _ := limiter(t, perSeconds(3, 3600), ratelimit.PerClient)
		r := take(t, l, 2, true)
		require.NoError(t, l.SetRate(t.Context(), perSeconds(3, 3600), ratelimit.PerClient))
		take(t, l, 1, true)
		given, err := l.Return(t.Context(), r)
		require.True(t, err == nil && !given)
		requireLeft(t, l, 2)
	})
}

func TestPerClient_GoesOnWhileRedisIsDown(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	server := redistest.Start(t)
	ctx, w := t.Context(), newWheel(t)
	c := newClient(t, server.Client(t, impatient, func(o *redis.Options) { o.ReadTimeout = 500 * time.Millisecond }), ratelimit.WithBreaker(1, 20*time.Millisecond))
	ratelimit.Forgetful(c, 2500*time.Millisecond)
	kept, brief, idle := c.Limiter("kept"), c.Limiter("brief"), c.Limiter("idle")
	require.NoError(t, idle.SetRate(ctx, perSeconds(1, 0.1), ratelimit.PerClient))
	require.NoError(t, kept.SetRate(ctx, perSeconds(10_000, 3600), ratelimit.PerClient))
	require.NoError(t, brief.SetRate(ctx, perSeconds(1, 0.5), ratelimit.PerClient, ratelimit.WithKeepAlive(2*time.Second)))
	take(t, kept, 1, true)
	take(t, brief, 1, true)
	take(t, idle, 1, true)
	server.Pause()

	granted, stalled := int64(1), redistest.Stalls(t)
	for began := time.Now(); time.Since(began) < 3*time.Second; granted++ {
		called, before := time.Now(), stalled()
		take(t, kept, 1, true)
		require.Less(t, time.Since(called)-(stalled()-before), time.Second, "no caller waits for Redis")
		require.NoError(t, w.Sleep(ctx, 2*time.Millisecond))
	}
	require.True(t, c.Stats().Down)
	take(t, idle, 1, true)
	require.Zero(t, c.Stats().Degraded, "the policy has nothing to do with it")
	requireLeft(t, kept, 10_000-granted)
	_, err := kept.Reserve(ctx, 1)
	require.NoError(t, err)
	require.NoError(t, kept.WaitN(ctx, 1))
	for range 3 {
		require.NoError(t, idle.Wait(within(t, patience))) // which takes its interval
	}
	_, err = brief.Allow(ctx)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable, "by now it may have vanished")
	_, err = brief.Reserve(ctx, 1)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)

	server.Resume()
	require.NoError(t, newClient(t, server.Client(t)).Limiter("kept").SetRate(ctx, perSeconds(20_000, 3600), ratelimit.PerClient))
	requireSoonLeft(t, kept, 20_000-granted-2)
	require.False(t, c.Stats().Down)
	_, err = brief.Allow(ctx)
	require.ErrorIs(t, err, ratelimit.ErrNotSet)
}

func TestPerClient_AKeepAliveShorterThanASecondIsKeptUp(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	l, _, _ := limiter(t, perSeconds(1000, 0.1), ratelimit.PerClient)
	ctx, w := t.Context(), newWheel(t)
	set := func() {
		require.NoError(t, l.SetRate(ctx, perSeconds(1000, 0.1), ratelimit.PerClient, ratelimit.WithKeepAlive(900*time.Millisecond)))
	}
	set()
	last := time.Now()
	for end := time.Now().Add(2500 * time.Millisecond); time.Now().Before(end); {
		_, err := l.Allow(ctx)
		if time.Since(last) > 200*time.Millisecond {
			set() // the machine stood still
		} else {
			require.NoError(t, err)
		}
		last = time.Now()
		require.NoError(t, w.Sleep(ctx, 5*time.Millisecond))
	}
}

func TestPerClient_ForgetsLimitersThatAreIdle(t *testing.T) {
	t.Parallel()
	c, rdb, _, name := shared(t)
	ratelimit.Forgetful(c, 100*time.Millisecond)
	ctx := t.Context()
	const names = 2000
	_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range names {
			p.HSet(ctx, fmt.Sprint(name, i), "rate", 3, "interval", 100, "type", 1, "keepAliveTime", 0)
		}
		return nil
	})
	require.NoError(t, err)
	for i := range names {
		take(t, c.Limiter(fmt.Sprint(name, i)), 1, true)
	}
	require.Positive(t, ratelimit.Names(c))
	redistest.Poll(t, func() bool { return ratelimit.Names(c) == 0 })
}

func TestPerClient_ConcurrentCallersAreExact(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	ctx, l := t.Context(), c.Limiter(name)
	require.NoError(t, l.SetRate(ctx, perSeconds(5000, 3600), ratelimit.PerClient))
	var granted, returned atomic.Int64
	var all sync.WaitGroup
	for g := range 32 {
		all.Go(func() {
			for i := range 500 {
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
	require.Equal(t, int64(32*500), c.Stats().Allowed+c.Stats().Denied, "without the Peek")
}
