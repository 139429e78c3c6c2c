package ratelimit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// What a settlement gives back can be used at once, beside later charges.
func TestReservation_SettleGivesBack(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	ctx := t.Context()
	k := c.Limiter("k", ratelimit.PerHour(100))
	r, err := k.Reserve(ctx, name, 60)
	require.NoError(t, err)
	res, err := k.AllowN(ctx, name, 30)
	require.NoError(t, err)
	require.True(t, res.Allowed)
	require.NoError(t, r.Settle(ctx, 20))
	state, err := k.Peek(ctx, name)
	require.NoError(t, err)
	require.EqualValues(t, 50, state.Remaining)
	require.NoError(t, r.Settle(ctx, 0), "does nothing")
	given, err := r.Cancel(ctx)
	require.NoError(t, err)
	require.False(t, given)
	state, err = k.Peek(ctx, name)
	require.NoError(t, err)
	require.EqualValues(t, 50, state.Remaining)
}

// A debt is waited for, and bounded.
func TestReservation_SettleBooksADebt(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	ctx := t.Context()
	k := c.Limiter("k", ratelimit.PerHour(100))
	r, err := k.Reserve(ctx, name, 60)
	require.NoError(t, err)
	require.NoError(t, r.Settle(ctx, 150))
	state, err := k.AllowN(ctx, name, 1)
	require.NoError(t, err)
	require.False(t, state.Allowed)
	require.InDelta(t, 51*36*time.Second, state.RetryAfter, float64(10*time.Second))
	r, err = k.Reserve(ctx, name, 1)
	require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
	require.Nil(t, r)

	k = c.Limiter("other", ratelimit.PerHour(100))
	r, err = k.Reserve(ctx, name, 60)
	require.NoError(t, err)
	var debt *ratelimit.DebtError
	require.ErrorAs(t, r.Settle(ctx, 1000), &debt)
	require.EqualValues(t, 140, debt.Booked)
	require.EqualValues(t, 800, debt.Dropped)
	state, err = k.AllowN(ctx, name, 1)
	require.NoError(t, err)
	require.InDelta(t, 101*36*time.Second, state.RetryAfter, float64(10*time.Second))

	k = c.Limiter("strict", ratelimit.PerHour(100), ratelimit.WithDebt(0))
	r, err = k.Reserve(ctx, name, 60)
	require.NoError(t, err)
	require.ErrorAs(t, r.Settle(ctx, 101), &debt)
	require.EqualValues(t, 40, debt.Booked)
	require.ErrorIs(t, c.Limiter("k", ratelimit.PerHour(1), ratelimit.WithDebt(-1)).Err(), cogwheel.ErrInvalid)
}

// Entries of a log are made smaller, and a debt is an entry too.
func TestReservation_SettleOfAStoredLimiter(t *testing.T) {
	t.Parallel()
	for what, opts := range map[string][]ratelimit.SetOption{"overall": nil, "per client": {ratelimit.WithScope(ratelimit.PerClient)}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, _, _, name := shared(t)
			ctx := t.Context()
			l := c.StoredLimiter(name)
			require.NoError(t, l.SetRate(ctx, ratelimit.PerHour(100), opts...))
			remaining := func() int64 {
				t.Helper()
				state, err := l.Peek(ctx)
				require.NoError(t, err)
				return state.Remaining
			}
			r, err := l.Reserve(ctx, 60)
			require.NoError(t, err)
			_, err = l.AllowN(ctx, 30)
			require.NoError(t, err)
			require.NoError(t, r.Settle(ctx, 20))
			require.EqualValues(t, 50, remaining())
			require.NoError(t, r.Settle(ctx, 0))
			require.EqualValues(t, 50, remaining())
			r, err = l.Reserve(ctx, 10)
			require.NoError(t, err)
			require.NoError(t, r.Settle(ctx, 0))
			require.EqualValues(t, 50, remaining())
			r, err = l.Reserve(ctx, 10)
			require.NoError(t, err)
			require.NoError(t, r.Settle(ctx, 70))
			require.Zero(t, remaining())
			var debt *ratelimit.DebtError
			r, err = c.StoredLimiter(name+"2").Reserve(ctx, 1)
			require.ErrorIs(t, err, ratelimit.ErrNotSet)
			require.Nil(t, r)
			require.NoError(t, l.SetRate(ctx, ratelimit.PerHour(100), opts...))
			r, err = l.Reserve(ctx, 10)
			require.NoError(t, err)
			require.ErrorAs(t, r.Settle(ctx, 1000), &debt)
			require.EqualValues(t, 190, debt.Booked)
			require.EqualValues(t, 800, debt.Dropped)
			require.Zero(t, remaining())
			res, err := l.Allow(ctx)
			require.NoError(t, err)
			require.False(t, res.Allowed)
		})
	}
}
