package ratelimit_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// A server closes connections that send large commands without a password. That is no outage.
// Guarantees: Q19.
func TestFailOpen_GrantsNothingWithoutThePassword(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	server := redistest.Start(t, "--requirepass", "secret")
	c := newClient(t, redis.NewClient(&redis.Options{Addr: server.Addr()}),
		ratelimit.WithPolicy(ratelimit.FailOpen()), ratelimit.WithBreaker(2, 20*time.Millisecond))
	k := c.Limiter("k", ratelimit.PerHour(10))
	parts := make([]ratelimit.Part, 6)
	for i := range parts {
		parts[i] = c.Limiter(fmt.Sprint("part", i), ratelimit.PerHour(10)).Part("u")
	}
	all := c.All(parts...)
	for range 20 {
		redistest.Each(t, 50, func(i int) error {
			for _, allow := range []func(context.Context) (ratelimit.Result, error){
				func(ctx context.Context) (ratelimit.Result, error) { return k.Allow(ctx, fmt.Sprint(i)) },
				func(ctx context.Context) (ratelimit.Result, error) { return k.AllowUpTo(ctx, fmt.Sprint(i), 3) },
				all.Allow,
			} {
				if r, err := allow(t.Context()); err == nil {
					return fmt.Errorf("decided: %+v", r)
				}
			}
			return nil
		})
	}
	require.ErrorIs(t, second(all.Allow(t.Context())), ratelimit.ErrMisconfigured)
	require.ErrorIs(t, all.Wait(within(t, patience)), ratelimit.ErrMisconfigured)
	require.False(t, c.Stats().Down)
	require.Zero(t, c.Stats().Degraded)
}

// A server that closes connections because it ends is away.
func TestFailOpen_GrantsWhenTheServerEnds(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newClient(t, server.Client(t), ratelimit.WithPolicy(ratelimit.FailOpen()))
	k := c.Limiter("k", ratelimit.PerHour(10))
	require.NoError(t, second(k.Allow(t.Context(), "u")))
	server.Kill()
	for range 5 {
		r, err := k.Allow(t.Context(), "u")
		require.NoError(t, err)
		require.Equal(t, ratelimit.SourceDegraded, r.Source)
	}
}

// A call that may not overtake those who wait says what is left and when to come back.
func TestAllow_BehindWaitersTellsTheTruth(t *testing.T) {
	t.Parallel()
	inLines(t, newClient(t, redistest.Shared(t).Client(t)), "used up", perSeconds(10, 3600), func(t *testing.T, l line) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, err := l.allow(ctx, 8)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		for range 3 {
			l.waitFunc(ctx, 5, func(error) {})
			redistest.Poll(t, func() bool {
				r, err = l.allow(ctx, 1)
				return err == nil && !r.Allowed
			})
			require.EqualValues(t, 10, r.Limit)
			require.LessOrEqual(t, r.Remaining, int64(2))
			require.Greater(t, r.RetryAfter, time.Minute)
			require.LessOrEqual(t, r.RetryAfter, 4*time.Hour)
			require.Positive(t, r.ResetAfter)
		}
	})
}

// While Redis is down, the policy decides also where others wait.
func TestAllow_BehindWaitersThePolicyDecides(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newClient(t, server.Client(t, impatient), ratelimit.WithBreaker(1, time.Hour), ratelimit.WithTimeout(300*time.Millisecond))
	k := c.Limiter("k", perSeconds(1, 3600))
	redistest.Poll(t, func() bool { return second(k.Allow(t.Context(), "u")) == nil })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	k.WaitFunc(ctx, "u", 1, func(error) {})
	server.Pause()
	defer server.Resume()
	redistest.Poll(t, func() bool { return c.Stats().Down || second(k.Allow(ctx, "v")) == nil })
	require.True(t, c.Stats().Down)
	require.ErrorIs(t, second(k.Allow(ctx, "u")), ratelimit.ErrUnavailable)
	require.ErrorIs(t, second(k.Allow(within(t, patience), "u")), ratelimit.ErrUnavailable)
}

// A deadline that comes before the permits ends a wait at once, whoever waits ahead.
func TestWait_AStoredLimitEndsAWaitAtOnce(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	l := c.StoredLimiter(name)
	require.NoError(t, l.SetRate(t.Context(), ratelimit.PerHour(5)))
	take(t, l, 2, true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 3 {
		l.WaitFunc(ctx, 5, func(error) {})
		var err error
		require.Less(t, redistest.Running(t, func() { err = l.Wait(within(t, patience)) }), time.Second)
		require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
	}
}
