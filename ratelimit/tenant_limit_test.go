package ratelimit_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/testsize"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// Requests for one key under a long and a short limit take turns. Neither makes the key forget what was used
// under the other.
// Guarantees: Q27.
func TestLimiter_LimitsOfOneKeyDoNotForgetEachOther(t *testing.T) {
	t.Parallel()
	for _, algorithm := range kinds {
		t.Run(fmt.Sprint(algorithm), func(t *testing.T) {
			t.Parallel()
			c, _, _, name := shared(t)
			k := c.Limiter("k", ratelimit.PerHour(20), ratelimit.WithAlgorithm(algorithm))
			short := ratelimit.Limit{Rate: 1000, Per: 10 * time.Millisecond, Burst: 1000}
			hourly := 0
			for range 100 {
				r, err := k.Allow(t.Context(), name)
				require.NoError(t, err)
				if r.Allowed {
					hourly++
				}
				_, err = k.With(short).Allow(t.Context(), name)
				require.NoError(t, err)
			}
			require.LessOrEqual(t, hourly, 20)
			require.Positive(t, hourly)
		})
	}
}

// What was used under one limit counts under the next: as a part of the burst with GCRA, as permits of the
// windows with FixedWindow and SlidingWindow. Reset frees the key.
// Guarantees: Q27.
func TestLimiter_WhatWasUsedCountsUnderTheNextLimit(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		algorithm    ratelimit.Algorithm
		before, then ratelimit.Limit
		used, left   int64
	}{
		"GCRA, ten times as much":               {ratelimit.GCRA, ratelimit.PerHour(100), ratelimit.PerHour(1000), 75, 250},
		"GCRA, a tenth":                         {ratelimit.GCRA, ratelimit.PerHour(1000), ratelimit.PerHour(100), 750, 25},
		"GCRA, a shorter burst, which it fills": {ratelimit.GCRA, ratelimit.PerHour(100), ratelimit.PerMinute(10), 75, 0},
		"GCRA, a longer burst":                  {ratelimit.GCRA, ratelimit.PerMinute(10), ratelimit.PerHour(60), 10, 59},
		"window, ten times as much":             {ratelimit.FixedWindow, ratelimit.PerHour(100), ratelimit.PerHour(1000), 75, 925},
		"window, a tenth":                       {ratelimit.FixedWindow, ratelimit.PerHour(1000), ratelimit.PerHour(100), 750, 0},
		"window, shorter":                       {ratelimit.FixedWindow, ratelimit.PerHour(100), ratelimit.PerMinute(80), 75, 5},
		"window, longer":                        {ratelimit.FixedWindow, ratelimit.PerMinute(10), ratelimit.PerHour(60), 10, 50},
		"sliding, ten times as much":            {ratelimit.SlidingWindow, ratelimit.PerHour(100), ratelimit.PerHour(1000), 75, 925},
		"sliding, a tenth":                      {ratelimit.SlidingWindow, ratelimit.PerHour(1000), ratelimit.PerHour(100), 750, 0},
		"sliding, shorter":                      {ratelimit.SlidingWindow, ratelimit.PerHour(100), ratelimit.PerMinute(80), 75, 5},
		"sliding, longer":                       {ratelimit.SlidingWindow, ratelimit.PerMinute(10), ratelimit.PerHour(60), 10, 50},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			client, _, _, name := shared(t)
			k := client.Limiter("k", c.before, ratelimit.WithAlgorithm(c.algorithm))
			_, err := k.AllowN(t.Context(), name, c.used)
			require.NoError(t, err)
			next := k.With(c.then)
			r, err := next.Peek(t.Context(), name)
			require.NoError(t, err)
			require.Equal(t, c.left, r.Remaining)
			require.Equal(t, c.then.Burst, r.Limit)
			require.Equal(t, c.left > 0, r.Allowed)
			require.NoError(t, k.Reset(t.Context(), name))
			r, err = next.Peek(t.Context(), name)
			require.NoError(t, err)
			require.Equal(t, c.then.Burst, r.Remaining)
		})
	}
}

// A window lasts as long as the longest limit that something of it was used under, counted from its begin.
// Guarantees: Q27.
func TestLimiter_AWindowLastsAsLongAsItsLongestLimit(t *testing.T) {
	t.Parallel()
	c, rdb, _, name := shared(t)
	k := c.Limiter("k", ratelimit.PerSecond(5), ratelimit.WithAlgorithm(ratelimit.FixedWindow))
	key := "k:{" + name + "}:window"
	require.NoError(t, rdb.Set(t.Context(), key, "5:60000", 50*time.Second).Err(), "a minute that began ten seconds ago")
	r, err := k.With(ratelimit.PerHour(5)).Allow(t.Context(), name)
	require.NoError(t, err)
	require.False(t, r.Allowed)
	require.LessOrEqual(t, r.RetryAfter, 51*time.Second, "a denial does not make it longer")
	r, err = k.With(ratelimit.PerHour(6)).Allow(t.Context(), name)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	left := rdb.PTTL(t.Context(), key).Val()
	require.Greater(t, left, time.Hour-10*time.Second-patience)
	require.LessOrEqual(t, left, time.Hour-10*time.Second)
	require.Equal(t, "6:3600000", rdb.Get(t.Context(), key).Val())
	require.InDelta(t, left, r.ResetAfter, float64(patience))
}

// Every call takes the limit of With, and one that is not valid is refused.
func TestLimiter_With(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	ctx := t.Context()
	k := c.Limiter("k", ratelimit.PerHour(100))
	none := k.With(ratelimit.PerHour(100).WithBurst(-1))
	require.ErrorIs(t, none.Err(), cogwheel.ErrInvalid)
	_, err := none.Allow(ctx, name)
	require.ErrorIs(t, err, cogwheel.ErrInvalid)
	require.NoError(t, k.Err())

	three := k.With(ratelimit.PerHour(100).WithBurst(3))
	require.Equal(t, ratelimit.PerHour(100), k.Limit())
	require.EqualValues(t, 3, three.Limit().Burst)
	require.NoError(t, three.WaitN(ctx, name, 2))
	r, err := three.AllowUpTo(ctx, name, 5)
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Granted)
	r, err = three.Peek(ctx, name)
	require.NoError(t, err)
	require.False(t, r.Allowed)
	reservation, err := three.Reserve(ctx, name+"2", 3)
	require.NoError(t, err)
	require.Zero(t, reservation.Delay())
	require.NoError(t, three.Reset(ctx, name))
	r, err = three.AllowN(ctx, name, 3)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	_, err = k.With(ratelimit.Limit{}).Allow(ctx, name)
	require.ErrorIs(t, err, cogwheel.ErrInvalid)
}

// Whatever combinations of keys and limits there are, memory holds what is in flight or denied now.
// At full size and alone, the test asks for a million of them and looks at the heap.
// Guarantees: Q18.
func TestLimiter_AMillionCombinationsOfKeyAndLimit(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t, func(o *redis.Options) { o.MaxRetries, o.DialTimeout = -1, 100*time.Millisecond })
	c := newClient(t, rdb, ratelimit.WithBreaker(1, time.Hour), ratelimit.WithPolicy(ratelimit.FailOpen()))
	k := c.Limiter("tenant", ratelimit.PerHour(1000))
	ask := func(keys, limits int64) {
		for key := range keys {
			name := fmt.Sprint(key)
			for limit := range limits {
				r, err := k.With(ratelimit.PerHour(1000+limit)).Allow(t.Context(), name)
				if err != nil || !r.Allowed {
					t.Fatal(key, limit, r, err)
				}
			}
		}
	}
	ask(100, 20) // in Redis
	server.Kill()
	ask(1, 2) // which opens the breaker: from then on, nothing but memory decides
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	ask(1000, testsize.WhenAlone[int64](30, 1000))
	require.Zero(t, ratelimit.Kept(c))
	if testsize.Alone() {
		require.Less(t, float64(heap())-float64(before), float64(32<<20), "a million states are 500 MB")
	}
}
