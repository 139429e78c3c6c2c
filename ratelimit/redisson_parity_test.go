package ratelimit_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// What RedissonRateLimiterTest asks, with shorter intervals, in both scopes. The comment before a subtest
// names the original tests. testRateConfig and testUpdateRateConfig are in limiterConfiguration, testExpire
// and testExpire2 in bothSidesKeepAlive: there is no expire() here, but one by Java is kept. A request above
// the rate is an error here, and a negative number of permits to release cannot be passed.

var scopes = map[string]ratelimit.Scope{"overall": ratelimit.Overall, "per client": ratelimit.PerClient}

// newStoredLimiter returns a limiter of c with a limit.
func newStoredLimiter(t *testing.T, c *ratelimit.Client, limit ratelimit.Limit, scope ratelimit.Scope) *ratelimit.StoredLimiter {
	t.Helper()
	l, _ := named(t, c, limit, scope)
	return l
}

// named is newStoredLimiter, and tells the name.
func named(t *testing.T, c *ratelimit.Client, limit ratelimit.Limit, scope ratelimit.Scope) (*ratelimit.StoredLimiter, string) {
	t.Helper()
	name := redistest.Name(t)
	l := c.StoredLimiter(name)
	ok, err := l.TrySetRate(t.Context(), limit, ratelimit.WithScope(scope))
	require.NoError(t, err)
	require.True(t, ok)
	return l, name
}

// inScopes runs f for both scopes.
func inScopes(t *testing.T, what string, f func(t *testing.T, scope ratelimit.Scope)) {
	t.Helper()
	for name, scope := range scopes {
		t.Run(what+", "+name, func(t *testing.T) {
			t.Parallel()
			f(t, scope)
		})
	}
}

func limiterCounts(t *testing.T, c *ratelimit.Client, _ redis.UniversalClient) {
	ctx, w := t.Context(), newWheel(t)

	// testAvailablePermits, testZeroTimeout
	inScopes(t, "what was taken is back after the interval", func(t *testing.T, scope ratelimit.Scope) {
		l := newStoredLimiter(t, c, perSeconds(5, 2.5), scope)
		requireLeft(t, l, 5)
		take(t, l, 2, true)
		requireLeft(t, l, 3)
		take(t, l, 2, true)
		take(t, l, 1, true)
		requireLeft(t, l, 0)
		take(t, l, 1, false)
		require.NoError(t, w.Sleep(ctx, 2600*time.Millisecond))
		requireLeft(t, l, 5)
		take(t, l, 5, true)
	})

	// testAcquisitionInterval
	inScopes(t, "the window slides", func(t *testing.T, scope ratelimit.Scope) {
		l, began := newStoredLimiter(t, c, perSeconds(2, 5), scope), time.Now()
		take(t, l, 1, true)
		first := time.Now()
		require.NoError(t, w.Sleep(ctx, 2500*time.Millisecond))
		take(t, l, 1, true)
		asked := time.Now()
		r := take(t, l, 1, false)
		require.LessOrEqual(t, r.RetryAfter, first.Add(5*time.Second).Sub(asked)+2*time.Millisecond)
		require.NoError(t, w.Sleep(ctx, time.Until(began.Add(4850*time.Millisecond))))
		if r, err := l.Peek(ctx); time.Since(began) < 5*time.Second {
			require.NoError(t, err)
			require.Zero(t, r.Remaining, "the first has not left")
		}
		require.NoError(t, w.Sleep(ctx, time.Until(first.Add(5050*time.Millisecond))))
		take(t, l, 1, true)
		take(t, l, 1, false) // only the first has left
	})

	// test
	inScopes(t, "ten in an interval, three times over", func(t *testing.T, scope ratelimit.Scope) {
		l, began := newStoredLimiter(t, c, perSeconds(10, 0.5), scope), time.Now()
		ok, err := l.TrySetRate(ctx, perSeconds(20, 1), ratelimit.WithScope(scope))
		require.NoError(t, err)
		require.False(t, ok, "a second time it is not set")
		for range 3 {
			for range 10 {
				require.NoError(t, l.Wait(ctx))
			}
		}
		require.GreaterOrEqual(t, time.Since(began), time.Second)
		require.Less(t, time.Since(began), 10*time.Second)
	})

	// testAcquire
	inScopes(t, "ten that wait for one each take nine intervals, and the next try fails", func(t *testing.T, scope ratelimit.Scope) {
		l, began := newStoredLimiter(t, c, perSeconds(1, 0.2), scope), time.Now()
		for range 10 {
			require.NoError(t, l.Wait(ctx))
		}
		took := time.Since(began)
		require.GreaterOrEqual(t, took, 1800*time.Millisecond)
		require.Less(t, took, 8*time.Second)
		r, err := l.Allow(ctx)
		require.NoError(t, err)
		require.True(t, !r.Allowed || time.Since(began) >= took+200*time.Millisecond)
	})

	// testTryAcquire; it fails at once here
	inScopes(t, "a wait that cannot succeed in time fails", func(t *testing.T, scope ratelimit.Scope) {
		l := newStoredLimiter(t, c, perSeconds(1, 60), scope)
		take(t, l, 1, true)
		began := time.Now()
		require.ErrorIs(t, l.Wait(within(t, 20*time.Second)), ratelimit.ErrWouldExceedDeadline)
		require.Less(t, time.Since(began), 10*time.Second, "and at once")
	})

	// testPermitsExceeding
	inScopes(t, "more than the rate is an error, and takes nothing", func(t *testing.T, scope ratelimit.Scope) {
		l := newStoredLimiter(t, c, perSeconds(5, 60), scope)
		_, err := l.AllowN(ctx, 6)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		require.ErrorIs(t, l.WaitN(ctx, 6), ratelimit.ErrExceedsLimit)
		_, err = l.Reserve(ctx, 6)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		requireLeft(t, l, 5)
	})

	// testRemove
	inScopes(t, "deleting leaves nothing, and a second time there is nothing", func(t *testing.T, scope ratelimit.Scope) {
		l := newStoredLimiter(t, c, perSeconds(5, 60), scope)
		take(t, l, 5, true)
		for _, want := range []bool{true, false} {
			ok, err := l.Delete(ctx)
			require.NoError(t, err)
			require.Equal(t, want, ok)
			_, err = l.Allow(ctx)
			require.ErrorIs(t, err, ratelimit.ErrNotSet)
		}
		require.NoError(t, l.SetRate(ctx, perSeconds(5, 60), ratelimit.WithScope(scope)))
		take(t, l, 5, true)
	})
}

func limiterUpdates(t *testing.T, c *ratelimit.Client, _ redis.UniversalClient) {
	ctx := t.Context()
	// testChangeRate, testSetStateArgs, and the tests of updateRate: KeepState, HigherRate, LowerRatePositive,
	// LowerRateNegative, NotKeepState, PermitResetFull
	for what, change := range map[string]struct {
		take, rate int64
		keep       bool
		want       int64
	}{
		"to a higher rate, with the state":                        {3, 20, true, 17},
		"to a higher rate, anew":                                  {3, 20, false, 20},
		"to a lower rate that leaves some":                        {3, 5, true, 2},
		"to a lower rate, below what was granted":                 {7, 5, true, 0},
		"to a lower rate, anew":                                   {7, 5, false, 5},
		"to the same, after all was granted, with the state":      {10, 10, true, 0},
		"to the same, after all was granted, anew":                {10, 10, false, 10},
		"to a higher rate, after all was granted, with the state": {10, 14, true, 4},
	} {
		inScopes(t, what, func(t *testing.T, scope ratelimit.Scope) {
			for _, update := range []bool{false, true} {
				l := newStoredLimiter(t, c, perSeconds(10, 60), scope)
				take(t, l, change.take, true)
				var opts []ratelimit.SetOption
				if change.keep {
					opts = append(opts, ratelimit.WithState())
				}
				if update {
					ok, err := l.UpdateRate(ctx, perSeconds(change.rate, 60), append([]ratelimit.SetOption{ratelimit.WithScope(scope)}, opts...)...)
					require.NoError(t, err)
					require.True(t, ok)
				} else {
					require.NoError(t, l.SetRate(ctx, perSeconds(change.rate, 60), append([]ratelimit.SetOption{ratelimit.WithScope(scope)}, opts...)...))
				}
				cfg, err := l.Config(ctx)
				require.NoError(t, err)
				require.Equal(t, ratelimit.Config{Limit: perSeconds(change.rate, 60), Scope: scope}, cfg)
				requireLeft(t, l, change.want)
				if change.want > 0 {
					take(t, l, change.want, true)
				}
				take(t, l, 1, false)
			}
		})
	}

	// ModeChangeClearsState
	inScopes(t, "to the other scope starts anew, whatever is asked for", func(t *testing.T, scope ratelimit.Scope) {
		l := newStoredLimiter(t, c, perSeconds(10, 60), scope)
		take(t, l, 10, true)
		ok, err := l.UpdateRate(ctx, perSeconds(8, 60), ratelimit.WithScope(1-scope), ratelimit.WithState())
		require.NoError(t, err)
		require.True(t, ok)
		requireLeft(t, l, 8)
		take(t, l, 8, true)
		require.NoError(t, l.SetRate(ctx, perSeconds(10, 60), ratelimit.WithScope(scope), ratelimit.WithState()))
		requireLeft(t, l, 10)
	})

	// a shorter interval, with the state
	inScopes(t, "to a shorter interval lets go what is older", func(t *testing.T, scope ratelimit.Scope) {
		l := newStoredLimiter(t, c, perSeconds(10, 60), scope)
		take(t, l, 6, true)
		require.NoError(t, newWheel(t).Sleep(ctx, 300*time.Millisecond))
		take(t, l, 1, true)
		ok, err := l.UpdateRate(ctx, perSeconds(10, 0.25), ratelimit.WithScope(scope), ratelimit.WithState())
		require.NoError(t, err)
		require.True(t, ok)
		r, err := l.Peek(ctx)
		require.NoError(t, err)
		require.GreaterOrEqual(t, r.Remaining, int64(9))
	})

	// NonExisting
	inScopes(t, "where nothing is set changes nothing", func(t *testing.T, scope ratelimit.Scope) {
		l := c.StoredLimiter(redistest.Name(t))
		ok, err := l.UpdateRate(ctx, perSeconds(10, 60), ratelimit.WithScope(scope))
		require.NoError(t, err)
		require.False(t, ok)
		_, err = l.Config(ctx)
		require.ErrorIs(t, err, ratelimit.ErrNotSet)
		_, err = l.Allow(ctx)
		require.ErrorIs(t, err, ratelimit.ErrNotSet)
	})
}

func limiterKeepAlive(t *testing.T, c *ratelimit.Client, rdb redis.UniversalClient) {
	ctx, w := t.Context(), newWheel(t)

	// testKeepAliveTime
	inScopes(t, "a limiter vanishes when it was not used for its keep-alive, and not before", func(t *testing.T, scope ratelimit.Scope) {
		const keepAlive = 3 * time.Second
		name := redistest.Name(t)
		l, config := c.StoredLimiter(name), ratelimit.LogKeys(name)[0]
		require.NoError(t, l.SetRate(ctx, perSeconds(10, 0.2), ratelimit.WithScope(scope), ratelimit.WithKeepAlive(keepAlive)))
		used := time.Now()
		for range 3 {
			require.NoError(t, w.Sleep(ctx, 1200*time.Millisecond)) // more than a PerClient waits until it asks again
			last := time.Since(used)
			take(t, l, 1, true)
			used = time.Now()
			left, err := rdb.PTTL(ctx, config).Result()
			require.NoError(t, err)
			require.Greater(t, left, keepAlive-last, "it was renewed")
		}
		require.NoError(t, w.Sleep(ctx, keepAlive+300*time.Millisecond))
		_, err := l.Allow(ctx)
		require.ErrorIs(t, err, ratelimit.ErrNotSet)
		for _, key := range ratelimit.LogKeys(name) {
			require.Zero(t, rdb.Exists(ctx, key).Val())
		}
	})

	t.Run("one that is shorter than the interval is refused", func(t *testing.T) {
		t.Parallel()
		l := c.StoredLimiter(redistest.Name(t))
		_, err := l.TrySetRate(ctx, perSeconds(10, 1), ratelimit.WithKeepAlive(999*time.Millisecond))
		require.ErrorIs(t, err, cogwheel.ErrInvalid)
		_, err = l.Config(ctx)
		require.ErrorIs(t, err, ratelimit.ErrNotSet)
	})
}

func limiterReturn(t *testing.T, c *ratelimit.Client, _ redis.UniversalClient) {
	ctx := t.Context()

	// testRelease
	inScopes(t, "what is returned can be taken again, once, and never more than the limit", func(t *testing.T, scope ratelimit.Scope) {
		l := newStoredLimiter(t, c, perSeconds(5, 60), scope)
		first := take(t, l, 2, true)
		take(t, l, 3, true)
		take(t, l, 1, false)
		for _, want := range []bool{true, false} {
			given, err := l.Return(ctx, first)
			require.NoError(t, err)
			require.Equal(t, want, given)
			requireLeft(t, l, 2)
		}
		for _, nothing := range []ratelimit.Result{{}, take(t, l, 3, false)} {
			given, err := l.Return(ctx, nothing)
			require.NoError(t, err)
			require.False(t, given)
		}
		take(t, l, 2, true)
		take(t, l, 1, false)
		parts, err := c.StoredLimiter(redistest.Name(t)).Return(ctx, first)
		require.True(t, err == nil && !parts, "another limiter has not granted it")
	})

	inScopes(t, "a grant of what there was is returned as a whole", func(t *testing.T, scope ratelimit.Scope) {
		l := newStoredLimiter(t, c, perSeconds(5, 60), scope)
		r, err := l.AllowUpTo(ctx, 100)
		require.NoError(t, err)
		require.Equal(t, int64(5), r.Granted)
		given, err := l.Return(ctx, r)
		require.NoError(t, err)
		require.True(t, given)
		requireLeft(t, l, 5)
	})

	inScopes(t, "a waiter gets what is returned", func(t *testing.T, scope ratelimit.Scope) {
		l := newStoredLimiter(t, c, perSeconds(5, 600), scope)
		r := take(t, l, 5, true)
		done := make(chan error, 1)
		l.WaitFunc(ctx, 4, func(err error) { done <- err })
		given, err := l.Return(ctx, r)
		require.NoError(t, err)
		require.True(t, given)
		require.NoError(t, <-done)
		requireLeft(t, l, 1)
	})
}

// inForce counts the entries that the interval up to now holds; others lie ahead, or have expired.
var inForce = redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1000 + t[2] / 1000
return redis.call('ZCOUNT', KEYS[1], string.format('(%.3f', now - ARGV[1]), string.format('%.3f', now))`)

func limiterConcurrency(t *testing.T, c *ratelimit.Client, rdb redis.UniversalClient) {
	ctx := t.Context()
	// together makes goroutines ask until there are so many grants, and returns these.
	together := func(goroutines, grants int64, ask func() bool) (all []oracle.Grant) {
		var mu sync.Mutex
		var left atomic.Int64
		var running sync.WaitGroup
		left.Store(grants)
		for range goroutines {
			running.Go(func() {
				for left.Load() > 0 {
					call := time.Now()
					if ask() {
						left.Add(-1)
						mu.Lock()
						all = append(all, oracle.Between(call, time.Now(), 1))
						mu.Unlock()
					}
				}
			})
		}
		running.Wait()
		return all
	}

	// testConcurrency2
	inScopes(t, "eight waiters in turn never have more than the rate in an interval", func(t *testing.T, scope ratelimit.Scope) {
		limit, began := perSeconds(18, 0.25), time.Now()
		l := newStoredLimiter(t, c, limit, scope)
		grants := together(8, 18*6, func() bool { return l.Wait(ctx) == nil })
		require.LessOrEqual(t, oracle.Excess(grants, oracle.Limit(limit).LogBound()), 0.0)
		require.GreaterOrEqual(t, time.Since(began), 1250*time.Millisecond)
		require.Less(t, time.Since(began), 20*time.Second)
	})

	// testConcurrency
	inScopes(t, "every tenth grant is an interval after the tenth before", func(t *testing.T, scope ratelimit.Scope) {
		limit, w := perSeconds(10, 0.25), newWheel(t)
		l := newStoredLimiter(t, c, limit, scope)
		grants := together(4, 10*5, func() bool {
			r, err := l.Allow(ctx)
			if err == nil && !r.Allowed {
				_ = w.Sleep(ctx, r.RetryAfter)
			}
			return err == nil && r.Allowed
		})
		require.LessOrEqual(t, oracle.Excess(grants, oracle.Limit(limit).LogBound()), 0.0)
	})

	// testRateValue; it counts in Redis, so in one scope only
	t.Run("two hundred waiters keep the log full", func(t *testing.T) {
		t.Parallel()
		const rate, samples = 400, 20
		name := redistest.Name(t)
		l, log, w := c.StoredLimiter(name), ratelimit.LogKeys(name)[2], newWheel(t)
		require.NoError(t, l.SetRate(ctx, perSeconds(rate, 1)))
		full, over := 0, make(chan struct{})
		go func() {
			defer close(over)
			together(200, rate*3, func() bool { return l.Wait(ctx) == nil })
		}()
		for range samples {
			require.NoError(t, w.Sleep(ctx, 95*time.Millisecond))
			held, err := inForce.Run(ctx, rdb, []string{log}, 1000).Int64()
			require.NoError(t, err)
			require.LessOrEqual(t, held, int64(rate))
			if held == rate {
				full++
			}
		}
		<-over
		require.GreaterOrEqual(t, full, 10, "a stall empties it for some samples")
	})
}
