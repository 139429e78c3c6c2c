package ratelimit_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// Guarantees: A1.
func TestRatelimit_RefusesBadInput(t *testing.T) {
	t.Parallel()
	c, rdb, trips, name := shared(t)
	ctx := t.Context()
	good := ratelimit.PerSecond(10)
	check := func(what string, err error, is error) {
		require.ErrorIs(t, err, is, what)
		require.NotContains(t, err.Error(), "user_script", what)
	}
	require.Zero(t, trips.trips(func() {
		for what, l := range map[string]ratelimit.Limit{
			"rate 0":        {Rate: 0, Per: time.Second, Burst: 1},
			"rate negative": {Rate: -1, Per: time.Second, Burst: 1},
			"rate huge":     {Rate: math.MaxInt64, Per: time.Second, Burst: 1},
			"period 0":      {Rate: 1, Per: 0, Burst: 1},
			"period < 0":    {Rate: 1, Per: -time.Second, Burst: 1},
			"period 1 ns":   {Rate: 1, Per: 1, Burst: 1},
			"period huge":   {Rate: 1, Per: math.MaxInt64, Burst: 1},
			"burst < 0":     good.WithBurst(-1),
			"burst huge":    good.WithBurst(math.MaxInt64),
			"500 years":     {Rate: 1, Per: 365 * 24 * time.Hour, Burst: 500},
		} {
			_, err := c.Limiter("k", l).Allow(ctx, name)
			check(what, err, cogwheel.ErrInvalid)
			check(what, c.Limiter("k", l).Wait(ctx, name), cogwheel.ErrInvalid)
			_, err = c.StoredLimiter(name).TrySetRate(ctx, l)
			check(what, err, cogwheel.ErrInvalid)
		}
		_, err := c.Limiter("k", good).AllowN(ctx, name, -1)
		check("n", err, cogwheel.ErrInvalid)
		check("n", c.StoredLimiter(name).WaitN(ctx, -1), cogwheel.ErrInvalid)
		_, err = c.Limiter("k", good).AllowN(ctx, name, math.MaxInt64)
		check("n", err, ratelimit.ErrExceedsLimit)
		_, err = c.StoredLimiter(name).AllowN(ctx, math.MaxUint32+1)
		check("R6: n above 32 bits", err, ratelimit.ErrExceedsLimit)
		for _, prefix := range []string{"", "a{b", "}", strings.Repeat("x", 2000)} {
			_, err = c.Limiter(prefix, good).Allow(ctx, name)
			check("prefix", err, cogwheel.ErrInvalid)
		}
		for _, name := range []string{"", "a{b", "}", "{}", strings.Repeat("x", 1<<20)} {
			_, err = c.StoredLimiter(name).Allow(ctx)
			check("name", err, cogwheel.ErrInvalid)
		}
		_, err = c.Limiter("k", good.WithBurst(20), ratelimit.WithAlgorithm(ratelimit.FixedWindow)).Allow(ctx, name)
		check("a window has no burst", err, cogwheel.ErrInvalid)
		_, err = c.Limiter("k", good.WithBurst(20), bySliding).Allow(ctx, name)
		check("a sliding window has no burst", err, cogwheel.ErrInvalid)
		_, err = c.StoredLimiter(name).TrySetRate(ctx, good, ratelimit.WithKeepAlive(time.Millisecond))
		check("keep-alive below the period", err, cogwheel.ErrInvalid)
		_, err = c.StoredLimiter(name).TrySetRate(ctx, good, ratelimit.WithScope(7))
		check("scope", err, cogwheel.ErrInvalid)
		for _, o := range []ratelimit.Option{
			nil, ratelimit.WithWheel(nil), ratelimit.WithLogger(nil), ratelimit.WithBreaker(0, time.Second),
			ratelimit.WithBreaker(1, 0), ratelimit.WithPolicy(ratelimit.LocalShare(0)),
		} {
			_, err = ratelimit.New(rdb, o)
			check("option", err, cogwheel.ErrInvalid)
		}
		_, err = ratelimit.New(nil)
		check("client", err, cogwheel.ErrInvalid)
		done := make(chan error, 1)
		c.StoredLimiter(name).WaitFunc(ctx, -1, func(err error) { done <- err })
		check("n", <-done, cogwheel.ErrInvalid)
		cancelled, cancel := context.WithCancel(ctx)
		cancel()
		_, err = c.Limiter("k", good).Allow(cancelled, name)
		check("ctx", err, context.Canceled)
	}), "nothing of it reaches Redis")

	require.NoError(t, rdb.LPush(ctx, "k:{"+name+"}", 1).Err())
	_, err := c.Limiter("k", good).Allow(ctx, name)
	check("a list", err, ratelimit.ErrWrongKind)
	_, err = c.StoredLimiter("k:{" + name + "}").Allow(ctx)
	check("a list", err, ratelimit.ErrWrongKind)
	require.NoError(t, rdb.Set(ctx, "k:{"+name+"2}", "nonsense", 0).Err())
	r, err := c.Limiter("k", good).Allow(ctx, name+"2")
	require.NoError(t, err)
	require.True(t, r.Allowed, "what is no state is taken for none")
	require.Positive(t, rdb.PTTL(ctx, "k:{"+name+"2}").Val())
}

// From a million a second to one a day: none, the whole burst, one more.
func TestLimiter_EveryRate(t *testing.T) {
	t.Parallel()
	c, rdb, _, name := shared(t)
	ctx := t.Context()
	for i, l := range gcraLimits {
		k := c.Limiter(fmt.Sprint("rate", i), l)
		r, err := k.AllowN(ctx, name, 0)
		require.NoError(t, err)
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: l.Burst, Remaining: l.Burst}, r, l)
		require.Zero(t, rdb.Exists(ctx, fmt.Sprintf("rate%d:{%s}", i, name)).Val())
		_, err = k.AllowN(ctx, name, l.Burst+1)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		require.ErrorIs(t, k.WaitN(ctx, name, l.Burst+1), ratelimit.ErrExceedsLimit)
		r, err = k.AllowN(ctx, name, l.Burst)
		require.NoError(t, err)
		refill := time.Duration(float64(l.Per) / float64(l.Rate) * float64(l.Burst))
		require.True(t, r.Allowed, l)
		require.Zero(t, r.Remaining)
		require.InDelta(t, refill, r.ResetAfter, float64(time.Microsecond))
		if each := refill / time.Duration(l.Burst); each > 10*time.Second {
			r, err = k.Allow(ctx, name)
			require.NoError(t, err)
			require.False(t, r.Allowed, l)
			require.InDelta(t, each, r.RetryAfter, float64(10*time.Second))
		}
	}
}

// What stands in Redis may be anything.
func TestStoredLimiter_AnOverwrittenLimitIsNone(t *testing.T) {
	t.Parallel()
	for _, field := range []string{"rate", "interval"} {
		for _, value := range []string{"", "x", "0", "-1", "1.5", "nan", "inf", "-inf", "1e99", "99999999999999999999"} {
			l, rdb, name := storedLimiter(t, perSeconds(10, 60), ratelimit.Overall)
			require.NoError(t, rdb.HSet(t.Context(), name, field, value).Err())
			_, err := l.Allow(t.Context())
			require.ErrorIs(t, err, ratelimit.ErrNotSet, "%s %q", field, value)
			_, err = l.AllowUpTo(t.Context(), 3)
			require.ErrorIs(t, err, ratelimit.ErrNotSet, "%s %q", field, value)
			_, err = l.Reserve(t.Context(), 1)
			require.ErrorIs(t, err, ratelimit.ErrNotSet, "%s %q", field, value)
			require.ErrorIs(t, l.Wait(t.Context()), ratelimit.ErrNotSet)
			require.Zero(t, rdb.Exists(t.Context(), ratelimit.LogKeys(name)[1:]...).Val())
			require.NoError(t, l.SetRate(t.Context(), perSeconds(10, 60)))
			take(t, l, 10, true)
		}
	}
}
