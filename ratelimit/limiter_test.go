package ratelimit_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// everywhere is what is tested on a single server and on a cluster.
var everywhere = map[string]func(t *testing.T, c *ratelimit.Client, rdb redis.UniversalClient){
	"GCRA":                         limiterGCRA,
	"FixedWindow":                  limiterFixedWindow,
	"SlidingWindow":                limiterSlidingWindow,
	"configuration":                limiterConfiguration,
	"redis_rate":                   limiterAsRedisRate,
	"RetryAfter":                   limiterRetryAfter,
	"Redisson, counts":             limiterCounts,
	"Redisson, a limit is changed": limiterUpdates,
	"Redisson, keep-alive":         limiterKeepAlive,
	"Redisson, release":            limiterReturn,
	"Redisson, concurrency":        limiterConcurrency,
	"waiting":                      waitingLikeXSync,
	"Redisson, defects":            redissonDefects,
	"Java takes":                   bothSidesCountTogether,
	"Java configures":              bothSidesConfigure,
	"Java keeps alive":             bothSidesKeepAlive,
}

// Guarantees: Q1, Q4, Q7.
func TestRatelimit_OnASingleServer(t *testing.T) {
	t.Parallel()
	for what, f := range everywhere {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Shared(t).Client(t)
			f(t, newClient(t, rdb), rdb)
		})
	}
}

// Guarantees: Q1, Q4, Q7.
func TestRatelimit_OnACluster(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	cluster := redistest.StartCluster(t)
	for what, f := range everywhere {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rdb := cluster.Client(t)
			f(t, newClient(t, rdb), rdb)
		})
	}
}

func limiterGCRA(t *testing.T, c *ratelimit.Client, rdb redis.UniversalClient) {
	ctx := t.Context()
	k := c.Limiter("k", ratelimit.PerMinute(10)) // one permit every 6 s
	name := redistest.Name(t)
	const slack = 2 * time.Second

	r, err := k.Peek(ctx, name)
	require.NoError(t, err)
	require.Equal(t, ratelimit.Result{Allowed: true, Limit: 10, Remaining: 10}, r)
	require.Zero(t, rdb.Exists(ctx, "k:{"+name+"}").Val(), "a look leaves nothing behind")

	r, err = k.Allow(ctx, name)
	require.NoError(t, err)
	require.Equal(t, ratelimit.Result{Allowed: true, Granted: 1, Limit: 10, Remaining: 9, ResetAfter: 6 * time.Second}, r)
	require.LessOrEqual(t, rdb.PTTL(ctx, "k:{"+name+"}").Val(), 6*time.Second+time.Millisecond)

	require.NoError(t, k.Reset(ctx, name))
	r, err = k.AllowN(ctx, name, 2)
	require.NoError(t, err)
	require.Equal(t, int64(8), r.Remaining)
	require.Equal(t, 12*time.Second, r.ResetAfter)
	r, err = k.AllowN(ctx, name, 8)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.Zero(t, r.Remaining)
	require.Greater(t, r.ResetAfter, 60*time.Second-slack)

	r, err = k.AllowN(ctx, name, 10)
	require.NoError(t, err)
	require.False(t, r.Allowed)
	require.Zero(t, r.Granted)
	require.LessOrEqual(t, r.RetryAfter, 60*time.Second)
	require.Greater(t, r.RetryAfter, 60*time.Second-slack)
	r, err = k.Peek(ctx, name)
	require.NoError(t, err)
	require.False(t, r.Allowed, "a look at an exhausted key says so")

	_, err = k.AllowN(ctx, name, 11)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	require.ErrorIs(t, k.WaitN(ctx, name, 1000), ratelimit.ErrExceedsLimit)
}

// usesUp uses up the permits of a key, one by one, and returns the denial that follows.
func usesUp(t *testing.T, k *ratelimit.Limiter, name string, permits int64) ratelimit.Result {
	t.Helper()
	for left := permits - 1; left >= 0; left-- {
		r, err := k.Allow(t.Context(), name)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Equal(t, left, r.Remaining)
	}
	r, err := k.Allow(t.Context(), name)
	require.NoError(t, err)
	require.False(t, r.Allowed)
	require.Positive(t, r.RetryAfter)
	return r
}

func limiterSlidingWindow(t *testing.T, c *ratelimit.Client, rdb redis.UniversalClient) {
	ctx, name := t.Context(), redistest.Name(t)
	k := c.Limiter("s", ratelimit.PerHour(3), bySliding)
	r := usesUp(t, k, name, 3)
	require.LessOrEqual(t, r.RetryAfter, 2*time.Hour)
	require.Regexp(t, `^\d+:[0-3]:[0-3]:3600000$`, rdb.Get(ctx, "s:{"+name+"}:sliding").Val())
	require.NoError(t, k.Reset(ctx, name))
	short := c.Limiter("s", ratelimit.Limit{Rate: 3, Per: 300 * time.Millisecond, Burst: 3}, bySliding)
	for range 3 {
		require.NoError(t, short.WaitN(within(t, patience), name, 3))
	}
}

func limiterFixedWindow(t *testing.T, c *ratelimit.Client, rdb redis.UniversalClient) {
	ctx := t.Context()
	k := c.Limiter("w", ratelimit.Limit{Rate: 3, Per: 3 * time.Second, Burst: 3}, ratelimit.WithAlgorithm(ratelimit.FixedWindow))
	name := redistest.Name(t)
	key := "w:{" + name + "}:window"
	r := usesUp(t, k, name, 3)
	require.LessOrEqual(t, r.RetryAfter, 3001*time.Millisecond)

	r, err := k.Peek(ctx, name)
	require.NoError(t, err)
	require.True(t, !r.Allowed || r.Remaining > 0, "of a full window none is left")
	_, err = k.AllowN(ctx, name, -1)
	require.ErrorIs(t, err, cogwheel.ErrInvalid)

	began := time.Now()
	require.NoError(t, k.WaitN(within(t, patience), name, 3))
	require.Less(t, time.Since(began), 10*time.Second)
	require.Equal(t, "3:3000", rdb.Get(ctx, key).Val())

	// A count without an expiry would last for ever, and text is no count: a new window begins.
	require.NoError(t, rdb.Persist(ctx, key).Err())
	require.NoError(t, k.WaitN(within(t, patience), name, 2))
	require.Positive(t, rdb.PTTL(ctx, key).Val())
	require.NoError(t, k.Reset(ctx, name))
	require.NoError(t, rdb.Set(ctx, key, "what", time.Minute).Err())
	require.NoError(t, k.WaitN(within(t, patience), name, 3))
}

func TestLimiter_AKnownDenialCostsNoRoundTrip(t *testing.T) {
	t.Parallel()
	c, _, trips, name := shared(t)
	ctx := t.Context()
	k := c.Limiter("k", ratelimit.PerHour(5))
	began, asked := time.Now(), int64(0)
	_, err := k.AllowN(ctx, name, 5)
	require.NoError(t, err)
	n := trips.trips(func() {
		for range 1000 {
			r, err := k.Allow(ctx, name)
			require.NoError(t, err)
			require.False(t, r.Allowed)
			if r.Source == ratelimit.SourceRedis {
				asked++
			}
		}
	})
	require.Equal(t, asked, n)
	require.LessOrEqual(t, n, int64(time.Since(began)/time.Second), "another process may have reset it: once a second")
	require.Equal(t, 1, ratelimit.States(k))
	require.Equal(t, 1, ratelimit.States(c.Limiter("k", ratelimit.PerHour(5))), "the same limiter, made again")
	require.NoError(t, k.Reset(ctx, name))
	r, err := k.Allow(ctx, name)
	require.NoError(t, err)
	require.True(t, r.Allowed, "a reset by this process ends the denials at once")
}

func TestLimiter_ADenialIsNotLongerThanItMust(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	ctx := t.Context()
	k := c.Limiter("k", ratelimit.Limit{Rate: 1, Per: 3 * time.Second, Burst: 1})
	_, err := k.Allow(ctx, name)
	require.NoError(t, err)
	r, err := k.Allow(ctx, name)
	require.NoError(t, err)
	require.False(t, r.Allowed)
	require.NoError(t, newWheel(t).Sleep(ctx, r.RetryAfter)) // whether that is enough is the question
	r, err = k.Allow(ctx, name)
	require.NoError(t, err)
	require.True(t, r.Allowed)
}

func TestLimiter_ConcurrentCallersShareScripts(t *testing.T) {
	t.Parallel()
	c, _, trips, name := shared(t)
	const callers, each, limit = 64, 50, 1000
	k := c.Limiter("k", ratelimit.Limit{Rate: limit, Per: 24 * time.Hour, Burst: limit}) // the next permit comes after 86 s
	var granted atomic.Int64
	n := trips.trips(func() {
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for range each {
					if r, err := k.Allow(t.Context(), name); err == nil && r.Allowed {
						granted.Add(1)
					}
				}
			})
		}
		all.Wait()
	})
	require.Equal(t, int64(limit), granted.Load(), "exact")
	require.Less(t, n, int64(limit/4), "callers that arrive while a script is under way join the next one")
	t.Logf("%d round trips for %d decisions", n, callers*each)
	require.Equal(t, int64(limit), c.Stats().Allowed)
	require.Equal(t, int64(callers*each-limit), c.Stats().Denied)
}

// Guarantees: Q7.
func TestLimiter_WaitersAreServedInOrder(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	ctx := within(t, patience)
	k := c.Limiter("k", ratelimit.Limit{Rate: 10, Per: time.Second, Burst: 5}) // so slow that a stall grants few at once
	require.NoError(t, k.WaitN(ctx, name, 5))

	var mu sync.Mutex
	var order []int
	done := make(chan error, 10)
	for i, n := range []int64{1, 5, 1, 1, 4, 1, 1, 1, 2, 1} {
		k.WaitFunc(ctx, name, n, func(err error) {
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			done <- err
		})
	}
	r, err := k.Allow(ctx, name)
	require.NoError(t, err)
	require.False(t, r.Allowed, "waiters are not overtaken")
	for range 10 {
		require.NoError(t, <-done)
	}
	require.Len(t, order, 10)
	place := map[int]int{}
	for at, waiter := range order {
		place[waiter] = at
	}
	require.Less(t, place[0], place[1])
	require.Less(t, place[1], place[4], "the big one was not overtaken by those far behind it")
}

func TestLimiter_ManyWaitersFewRoundTrips(t *testing.T) {
	t.Parallel()
	c, _, trips, name := shared(t)
	ctx := within(t, patience)
	// 10 permits at a time, each time after a tenth of a second.
	k := c.Limiter("k", ratelimit.Limit{Rate: 10, Per: 100 * time.Millisecond, Burst: 10}, ratelimit.WithAlgorithm(ratelimit.FixedWindow))
	_, err := k.AllowN(ctx, name, 10)
	require.NoError(t, err)
	done := make(chan error, 200)
	n := trips.trips(func() {
		for range 200 {
			k.WaitFunc(ctx, name, 1, func(err error) { done <- err })
		}
		for range 200 {
			require.NoError(t, <-done)
		}
	})
	require.LessOrEqual(t, n, int64(30), "one for each of 20 windows, and one more for each stall of the machine")
	t.Logf("%d round trips for 200 waiters ", n)
}

func TestLimiter_WaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	k := c.Limiter("k", ratelimit.PerHour(1))
	require.NoError(t, k.Wait(t.Context(), name))
	began := time.Now()
	require.ErrorIs(t, k.Wait(within(t, time.Minute), name), ratelimit.ErrWouldExceedDeadline)
	require.Less(t, time.Since(began), 10*time.Second, "at once")

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	k.WaitFunc(ctx, name, 1, func(err error) { done <- err })
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	stop := k.WaitFunc(t.Context(), name, 1, func(err error) { done <- err })
	stop()
	stop()
	require.ErrorIs(t, <-done, context.Canceled)
}

func TestLimiter_Reserve(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	ctx := t.Context()
	k := c.Limiter("k", ratelimit.Limit{Rate: 1, Per: 30 * time.Second, Burst: 1})
	first, err := k.Reserve(ctx, name, 1)
	require.NoError(t, err)
	require.Zero(t, first.Delay())
	second, err := k.Reserve(ctx, name, 1)
	require.NoError(t, err)
	require.Greater(t, second.Delay(), 20*time.Second)
	require.LessOrEqual(t, second.Delay(), 30*time.Second)
	_, err = k.Reserve(within(t, 10*time.Second), name, 1)
	require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)

	given, err := first.Cancel(ctx)
	require.NoError(t, err)
	require.True(t, given)
	given, err = second.Cancel(ctx)
	require.NoError(t, err)
	require.True(t, given)
	given, err = second.Cancel(ctx)
	require.NoError(t, err)
	require.False(t, given, "once")
	third, err := k.Reserve(ctx, name, 1)
	require.NoError(t, err)
	require.Zero(t, third.Delay())
	require.NoError(t, first.Wait(ctx))
}

func TestClient_CloseEndsWaits(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	k := c.Limiter("k", ratelimit.PerHour(1))
	require.NoError(t, k.Wait(t.Context(), name))
	done := make(chan error, 3)
	for range 3 {
		k.WaitFunc(t.Context(), name, 1, func(err error) { done <- err })
	}
	require.NoError(t, c.Close(within(t, patience)))
	for range 3 {
		require.ErrorIs(t, <-done, ratelimit.ErrClosed)
	}
	_, err := k.Allow(t.Context(), name+"2")
	require.ErrorIs(t, err, ratelimit.ErrClosed)
	require.ErrorIs(t, k.Wait(t.Context(), name), ratelimit.ErrClosed)
}

func TestLimit_WithoutABurstHasOneOfItsRate(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	require.Equal(t, ratelimit.Limit{Rate: 100, Per: day, Burst: 100}, ratelimit.PerDay(100))
	require.Equal(t, ratelimit.PerDay(100), ratelimit.Per(100, day))
	none := ratelimit.Limit{Rate: 2, Per: day}
	require.Equal(t, ratelimit.PerDay(2).String(), none.String())

	c, _, _, name := shared(t)
	for what, k := range map[string]*ratelimit.Limiter{
		"GCRA":           c.Limiter("gcra", none),
		"fixed window":   c.Limiter("window", none, ratelimit.WithAlgorithm(ratelimit.FixedWindow)),
		"sliding window": c.Limiter("sliding", none, bySliding),
		"With":           c.Limiter("with", ratelimit.PerHour(1)).With(none),
	} {
		require.NoError(t, k.Err(), what)
		require.Equal(t, ratelimit.PerDay(2), k.Limit(), what)
		for _, want := range []bool{true, true, false} {
			r, err := k.Allow(t.Context(), name)
			require.NoError(t, err, what)
			require.Equal(t, want, r.Allowed, what)
			require.Equal(t, int64(2), r.Limit, what)
		}
	}
	r, err := c.Limiter("once", ratelimit.PerHour(1)).With(none).AllowN(t.Context(), name, 2)
	require.NoError(t, err)
	require.True(t, r.Allowed)

	l := c.StoredLimiter(name)
	_, err = l.TrySetRate(t.Context(), none)
	require.NoError(t, err)
	for _, want := range []bool{true, true, false} {
		r, err := l.Allow(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, r.Allowed)
	}
	require.ErrorIs(t, c.Limiter("negative", none.WithBurst(-1)).Err(), cogwheel.ErrInvalid)
}
