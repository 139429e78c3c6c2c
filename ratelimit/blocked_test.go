package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// A limit of 0 denies each request, without Redis, and hooks and Stats count it as any other denial.
func TestBlocked_EveryRequestIsDenied(t *testing.T) {
	t.Parallel()
	for _, a := range shadowAlgorithms {
		for _, policy := range []ratelimit.Policy{ratelimit.FailClosed(), ratelimit.FailOpen(), ratelimit.LocalShare(1)} {
			events, server := &seen{}, redistest.Shared(t)
			rdb := server.Client(t)
			trips := &counter{}
			rdb.AddHook(trips)
			c := newClient(t, rdb, ratelimit.WithHooks(events.hooks()), ratelimit.WithPolicy(policy))
			k := c.Limiter("api", ratelimit.PerDay(3), ratelimit.WithAlgorithm(a)).With(ratelimit.PerHour(0))
			require.NoError(t, k.Err())
			require.Equal(t, "0 per 1h0m0s, burst 0", k.Limit().String())
			other := c.Limiter("other", ratelimit.PerDay(3))
			all, one := c.All(other.Part("u"), k.Part("u").Cost(2)), c.All(k.Part("u"))
			var denied int64
			require.Zero(t, trips.trips(func() {
				for what, ask := range map[string]func(context.Context, int64) (ratelimit.Result, error){
					"AllowN":     func(ctx context.Context, n int64) (ratelimit.Result, error) { return k.AllowN(ctx, "u", n) },
					"AllowUpTo":  func(ctx context.Context, n int64) (ratelimit.Result, error) { return k.AllowUpTo(ctx, "u", n) },
					"TryReserve": func(ctx context.Context, n int64) (ratelimit.Result, error) { return k.TryReserve(ctx, "u", n) },
					"All.AllowN": all.AllowN, "All.TryReserve": all.TryReserve, "All of one": one.AllowN,
				} {
					r, err := ask(t.Context(), 2)
					require.NoError(t, err)
					for i := range r.Parts {
						blocked := r.Parts[i].Name == "api"
						require.Equal(t, [2]bool{!blocked, blocked}, [2]bool{r.Parts[i].Allowed, r.Parts[i].RetryAfter == ratelimit.Never})
					}
					r.Parts = nil
					require.Equal(t, ratelimit.Result{RetryAfter: ratelimit.Never, Source: ratelimit.SourceLocal}, r, what)
					denied++
					event, e := events.take(t)
					require.Equal(t, "denied", event)
					require.Equal(t, ratelimit.Never, e.Result.RetryAfter)
					require.Equal(t, denied, c.Stats().Denied)
					r, err = ask(t.Context(), 0)
					require.NoError(t, err)
					require.True(t, r.Allowed, "%s takes nothing", what)
					require.ErrorIs(t, second(ask(t.Context(), -1)), cogwheel.ErrInvalid)
					require.ErrorIs(t, second(ask(ended(t), 1)), context.Canceled)
					events.events, events.what = nil, nil
				}
				for _, ask := range []func(context.Context) (ratelimit.Result, error){
					func(ctx context.Context) (ratelimit.Result, error) { return k.Peek(ctx, "u") }, all.Peek,
				} {
					r, err := ask(t.Context())
					require.NoError(t, err)
					require.Equal(t, [2]any{false, ratelimit.Never}, [2]any{r.Allowed, r.RetryAfter})
					events.none(t)
				}
				for _, err := range []error{
					k.Wait(t.Context(), "u"), waitFunc(t.Context(), k, "u", 1), second(k.Reserve(t.Context(), "u", 1)), second(k.Reserve(t.Context(), "u", 0)), all.Wait(t.Context()),
				} {
					require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
				}
			}))
			require.NoError(t, c.Close(t.Context()))
			require.ErrorIs(t, second(k.Allow(t.Context(), "u")), ratelimit.ErrClosed)
			require.ErrorIs(t, second(all.Allow(t.Context())), ratelimit.ErrClosed)
		}
	}
}

// What was used stays used while a tenant is blocked, and Reset frees it.
func TestBlocked_TheKeyStaysAsItIs(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	for _, a := range shadowAlgorithms {
		k := c.Limiter("k", ratelimit.PerDay(3), ratelimit.WithAlgorithm(a))
		blocked := k.With(ratelimit.PerDay(0))
		require.NoError(t, second(k.AllowN(t.Context(), name, 2)))
		require.NoError(t, second(blocked.Allow(t.Context(), name)))
		require.EqualValues(t, 1, remaining(t, k, name))
		require.NoError(t, blocked.Reset(t.Context(), name))
		require.EqualValues(t, 3, remaining(t, k.With(ratelimit.PerDay(3)), name))
	}
}

func TestBlocked_InShadow(t *testing.T) {
	t.Parallel()
	c, _, _, _ := shared(t)
	k := c.Limiter("k", ratelimit.PerDay(0), ratelimit.WithShadow())
	for _, ask := range []func(context.Context) (ratelimit.Result, error){
		func(ctx context.Context) (ratelimit.Result, error) { return k.Allow(ctx, "u") }, c.All(k.Part("u")).Allow,
	} {
		r, err := ask(t.Context())
		require.NoError(t, err)
		require.True(t, r.Allowed && r.WouldDeny)
	}
	require.EqualValues(t, 2, c.Stats().ShadowDenied)
	require.NoError(t, k.Wait(t.Context(), "u"))
}

// A row that is missing in a table is an error, and so is a limit of 0 with a burst, or without a valid period.
func TestBlocked_TheZeroLimitIsInvalid(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	plans := map[string]ratelimit.Limit{}
	for _, limit := range []ratelimit.Limit{
		plans["unknown"], ratelimit.PerDay(0).WithBurst(1), ratelimit.Per(0, -time.Second), ratelimit.Per(0, 2*ratelimit.MaxPer),
	} {
		require.ErrorIs(t, c.Limiter("k", limit).Err(), cogwheel.ErrInvalid, limit)
	}
	require.ErrorContains(t, c.Limiter("k", plans["unknown"]).Err(), "PerDay(0)")
	require.ErrorIs(t, c.StoredLimiter(name).SetRate(t.Context(), ratelimit.PerDay(0)), cogwheel.ErrInvalid)
}
