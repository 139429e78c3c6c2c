package ratelimit_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// Whatever a caller gets as an error, also for a limit of a table that is not valid, hooks and Stats see as Failed.
func TestHooks_SeeEveryErrorOfACaller(t *testing.T) {
	t.Parallel()
	events, name := &seen{}, redistest.Name(t)
	c := newClient(t, redistest.Shared(t).Client(t), ratelimit.WithHooks(events.hooks()))
	k, l := c.Limiter(name, ratelimit.PerDay(3)), c.StoredLimiter(name)
	require.NoError(t, l.SetRate(t.Context(), ratelimit.PerDay(3)))
	var failed int64
	requireFailed := func(want error, key string, call func(ctx context.Context) error) {
		t.Helper()
		require.ErrorIs(t, call(t.Context()), want)
		what, e := events.take(t)
		require.Equal(t, "failed", what)
		require.ErrorIs(t, e.Err, want)
		require.Equal(t, key, e.Key)
		failed++
		require.Equal(t, failed, c.Stats().Failed)
	}
	for want, of := range map[error]struct {
		k *ratelimit.Limiter
		n int64
	}{
		cogwheel.ErrInvalid:       {k.With(ratelimit.Limit{Rate: -1}), 1},
		ratelimit.ErrExceedsLimit: {k, 4},
	} {
		requireFailed(want, "u", func(ctx context.Context) error { return second(of.k.AllowN(ctx, "u", of.n)) })
		requireFailed(want, "u", func(ctx context.Context) error { return second(of.k.TryReserve(ctx, "u", of.n)) })
		requireFailed(want, "u", func(ctx context.Context) error { return second(of.k.Reserve(ctx, "u", of.n)) })
		requireFailed(want, "u", func(ctx context.Context) error { return of.k.WaitN(ctx, "u", of.n) })
		requireFailed(want, "u", func(ctx context.Context) error { return waitFunc(ctx, of.k, "u", of.n) })
		all := c.All(of.k.Part("u"), k.Part("v"))
		requireFailed(want, "", func(ctx context.Context) error { return second(all.AllowN(ctx, of.n)) })
		requireFailed(want, "", func(ctx context.Context) error { return second(all.TryReserve(ctx, of.n)) })
		requireFailed(want, "", func(ctx context.Context) error { return all.WaitN(ctx, of.n) })
	}
	requireFailed(cogwheel.ErrInvalid, "u", func(ctx context.Context) error { return second(k.AllowN(ctx, "u", -1)) })
	requireFailed(cogwheel.ErrInvalid, "u", func(ctx context.Context) error { return second(k.AllowUpTo(ctx, "u", -1)) })
	requireFailed(cogwheel.ErrInvalid, "", func(ctx context.Context) error { return second(l.AllowUpTo(ctx, -1)) })
	requireFailed(cogwheel.ErrInvalid, "", func(ctx context.Context) error { return second(l.AllowN(ctx, -1)) })
	require.ErrorIs(t, second(k.Allow(nil, "u")), cogwheel.ErrInvalid) //nolint:staticcheck // there is no context for an Event
	events.none(t)

	require.NoError(t, c.Close(t.Context()))
	requireFailed(ratelimit.ErrClosed, "u", func(ctx context.Context) error { return second(k.Allow(ctx, "u")) })
	requireFailed(ratelimit.ErrClosed, "u", func(ctx context.Context) error { return k.Wait(ctx, "u") })
	requireFailed(ratelimit.ErrClosed, "u", func(ctx context.Context) error { return waitFunc(ctx, k, "u", 1) })
	requireFailed(ratelimit.ErrClosed, "", func(ctx context.Context) error { return second(l.Allow(ctx)) })
}

// The parts of an All say which they are: in results, in events, and in the error of the part that can never grant.
func TestAll_PartsSayWhichTheyAre(t *testing.T) {
	t.Parallel()
	events, name := &seen{}, redistest.Name(t)
	c := newClient(t, redistest.Shared(t).Client(t), ratelimit.WithHooks(events.hooks()))
	for _, opts := range [][]ratelimit.LimiterOption{nil, {ratelimit.WithShadow()}} {
		user, service := c.Limiter("user", ratelimit.PerDay(1), opts...), c.Limiter("service", ratelimit.PerDay(9), opts...)
		parts := []ratelimit.Part{user.Part(name), service.Part("mail:" + name).Cost(3)}
		for n := 1; n <= 2; n++ {
			all := c.All(parts[:n]...)
			for _, ask := range []func(context.Context) (ratelimit.Result, error){
				all.Allow, all.Peek, all.Allow,
				func(ctx context.Context) (ratelimit.Result, error) { return all.TryReserve(ctx, 1) },
			} {
				r, err := ask(t.Context())
				require.NoError(t, err)
				require.Empty(t, r.Name+r.Key)
				require.Len(t, r.Parts, n)
				require.Equal(t, []string{"user", name}, []string{r.Parts[0].Name, r.Parts[0].Key})
				if n == 2 {
					require.Equal(t, []string{"service", "mail:" + name}, []string{r.Parts[1].Name, r.Parts[1].Key})
				}
			}
		}
		r, err := c.All(parts...).AllowN(t.Context(), 4)
		if opts == nil {
			require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
			require.ErrorContains(t, err, "4 times 1 of user:{"+name+"}, 1 per 24h0m0s, burst 1")
		} else {
			require.NoError(t, err)
			require.Equal(t, []string{"user", name}, []string{r.Parts[0].Name, r.Parts[0].Key})
		}
		for _, e := range events.events[:6] {
			require.Equal(t, []string{"user", name}, []string{e.Result.Parts[0].Name, e.Result.Parts[0].Key})
		}
		events.events, events.what = nil, nil
	}
}
