package ratelimit_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/ratelimit"
)

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
			"burst 0":       {Rate: 1, Per: time.Second},
			"burst < 0":     good.WithBurst(-1),
			"burst huge":    good.WithBurst(math.MaxInt64),
			"500 years":     {Rate: 1, Per: 365 * 24 * time.Hour, Burst: 500},
		} {
			_, err := c.Keyed("k", l).Allow(ctx, name)
			check(what, err, ratelimit.ErrInvalid)
			check(what, c.Keyed("k", l).Wait(ctx, name), ratelimit.ErrInvalid)
			_, err = c.Limiter(name).TrySetRate(ctx, l, ratelimit.Overall)
			check(what, err, ratelimit.ErrInvalid)
		}
		_, err := c.Keyed("k", good).AllowN(ctx, name, -1)
		check("n", err, ratelimit.ErrInvalid)
		check("n", c.Limiter(name).WaitN(ctx, -1), ratelimit.ErrInvalid)
		_, err = c.Keyed("k", good).AllowN(ctx, name, math.MaxInt64)
		check("n", err, ratelimit.ErrExceedsLimit)
		_, err = c.Limiter(name).AllowN(ctx, math.MaxUint32+1)
		check("R6: n above 32 bits", err, ratelimit.ErrExceedsLimit)
		for _, prefix := range []string{"", "a{b", "}", strings.Repeat("x", 2000)} {
			_, err = c.Keyed(prefix, good).Allow(ctx, name)
			check("prefix", err, ratelimit.ErrInvalid)
		}
		for _, key := range []string{"", "a{b", "}", "{}", strings.Repeat("x", 1<<20)} {
			_, err = c.Keyed("k", good).Allow(ctx, key)
			check("key", err, ratelimit.ErrInvalid)
			_, err = c.Limiter(key).Allow(ctx)
			check("name", err, ratelimit.ErrInvalid)
		}
		_, err = c.Keyed("k", good, ratelimit.WithPrefetch(9, time.Millisecond)).Allow(ctx, name)
		check("prefetch", err, ratelimit.ErrInvalid)
		_, err = c.Keyed("k", good.WithBurst(20), ratelimit.FixedWindow).Allow(ctx, name)
		check("a window has no burst", err, ratelimit.ErrInvalid)
		_, err = c.Limiter(name).TrySetRate(ctx, good, ratelimit.Overall, ratelimit.WithKeepAlive(time.Millisecond))
		check("keep-alive below the period", err, ratelimit.ErrInvalid)
		_, err = c.Limiter(name).TrySetRate(ctx, good, 7)
		check("scope", err, ratelimit.ErrInvalid)
		for _, o := range []ratelimit.Option{
			nil, ratelimit.WithWheel(nil), ratelimit.WithLogger(nil), ratelimit.WithBreaker(0, time.Second),
			ratelimit.WithBreaker(1, 0), ratelimit.WithPolicy(ratelimit.LocalShare(0)),
		} {
			_, err = ratelimit.New(rdb, o)
			check("option", err, ratelimit.ErrInvalid)
		}
		_, err = ratelimit.New(nil)
		check("client", err, ratelimit.ErrInvalid)
		done := make(chan error, 1)
		c.Limiter(name).WaitFunc(ctx, 0, func(err error) { done <- err })
		check("n", <-done, ratelimit.ErrInvalid)
		cancelled, cancel := context.WithCancel(ctx)
		cancel()
		_, err = c.Keyed("k", good).Allow(cancelled, name)
		check("ctx", err, context.Canceled)
	}), "nothing of it reaches Redis")

	require.NoError(t, rdb.LPush(ctx, "k:{"+name+"}", 1).Err())
	_, err := c.Keyed("k", good).Allow(ctx, name)
	check("a list", err, ratelimit.ErrWrongKind)
	_, err = c.Limiter("k:{" + name + "}").Allow(ctx)
	check("a list", err, ratelimit.ErrWrongKind)
	require.NoError(t, rdb.Set(ctx, "k:{"+name+"2}", "nonsense", 0).Err())
	r, err := c.Keyed("k", good).Allow(ctx, name+"2")
	require.NoError(t, err)
	require.True(t, r.Allowed, "what is no state is taken for none")
	require.Positive(t, rdb.PTTL(ctx, "k:{"+name+"2}").Val())
}
