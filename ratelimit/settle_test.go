package ratelimit_test

import (
	"fmt"
	"math"
	"math/rand/v2"
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

// A debt of less than a microsecond is charged or refused as others are.
func TestReservation_ADebtBelowAMicrosecondIsRefusedToo(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	ctx, limit := t.Context(), ratelimit.Limit{Rate: ratelimit.MaxRate, Per: 100 * time.Second, Burst: ratelimit.MaxRate}
	k, strict := c.Limiter("k", limit), c.Limiter("k", limit, ratelimit.WithDebt(0))
	small, err := strict.TryReserve(ctx, name, 1)
	require.NoError(t, err)
	charged, err := strict.TryReserve(ctx, name, 1)
	require.NoError(t, err)
	require.NoError(t, charged.Reservation.Settle(ctx, 5))
	large, err := k.TryReserve(ctx, name, 1)
	require.NoError(t, err)
	require.NoError(t, large.Reservation.Settle(ctx, limit.Burst*3/2))
	var debt *ratelimit.DebtError
	require.ErrorAs(t, small.Reservation.Settle(ctx, 5), &debt)
	require.Zero(t, debt.Booked)
	require.EqualValues(t, 4, debt.Dropped)
}

// What is worth less than a microsecond is given back as other permits are.
func TestReservation_APermitBelowAMicrosecondIsGivenBack(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	k := c.Limiter("k", ratelimit.Limit{Rate: ratelimit.MaxRate, Per: 100 * time.Second, Burst: ratelimit.MaxRate})
	require.NoError(t, second(k.AllowN(t.Context(), name, k.Limit().Burst/2)))
	r, err := k.TryReserve(t.Context(), name, 1)
	require.NoError(t, err)
	given, err := r.Reservation.Cancel(t.Context())
	require.NoError(t, err)
	require.True(t, given)
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

// A debt that is far above the burst stays when a part of another reservation is given back.
func TestReservation_ADebtOutlastsAReturn(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	ctx := t.Context()
	k := c.Limiter("k", ratelimit.PerHour(100))
	first, err := k.Reserve(ctx, name, 90)
	require.NoError(t, err)
	second, err := k.Reserve(ctx, name, 10)
	require.NoError(t, err)
	require.NoError(t, first.Settle(ctx, 140))
	require.NoError(t, second.Settle(ctx, 5))
	res, err := k.AllowN(ctx, name, 1)
	require.NoError(t, err)
	require.False(t, res.Allowed)
	require.InDelta(t, 46*36*time.Second, res.RetryAfter, float64(10*time.Second))
}

// A reservation that is more than a minute ahead of the burst of another limit counts under that one too.
func TestReserve_CountsUnderALimitWithAShortBurst(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	ctx := t.Context()
	k := c.Limiter("k", ratelimit.Limit{Rate: 10, Per: 28 * time.Second, Burst: 10})
	for range 3 {
		_, err := k.Reserve(ctx, name, 10)
		require.NoError(t, err)
	}
	res, err := k.With(ratelimit.PerSecond(10)).Allow(ctx, name)
	require.NoError(t, err)
	require.False(t, res.Allowed)
}

// A settlement that counts the log counts what stays of the entry, so that no later call of any client takes it again.
func TestReservation_SettleCountsWhatStaysInALog(t *testing.T) {
	t.Parallel()
	c, rdb, _, name := shared(t)
	ctx := t.Context()
	l, other := c.StoredLimiter(name), newClient(t, rdb).StoredLimiter(name)
	require.NoError(t, l.SetRate(ctx, ratelimit.PerHour(100)))
	first, err := l.Reserve(ctx, 40)
	require.NoError(t, err)
	second, err := l.Reserve(ctx, 20)
	require.NoError(t, err)
	_, err = other.Allow(ctx) // which counts the log, and trusts the value from then on
	require.NoError(t, err)
	require.NoError(t, first.Settle(ctx, 20))
	require.NoError(t, second.Settle(ctx, 10)) // counts: the client has forgotten the state
	res, err := other.AllowN(ctx, 70)
	require.NoError(t, err)
	require.False(t, res.Allowed, "31 of 100 are used")
	res, err = other.AllowN(ctx, 69)
	require.NoError(t, err)
	require.True(t, res.Allowed)
}

// longWindows are limiters of windows that do not end during a test, with 100 permits.
func longWindows(c *ratelimit.Client) map[string]*ratelimit.Limiter {
	limit := ratelimit.Limit{Rate: 100, Per: 24 * 365 * time.Hour, Burst: 100}
	return map[string]*ratelimit.Limiter{
		"fixed windows":   c.Limiter("k", limit, byWindows),
		"sliding windows": c.Limiter("k", limit, bySliding),
	}
}

func remaining(t *testing.T, k *ratelimit.Limiter, key string) int64 {
	t.Helper()
	r, err := k.Peek(t.Context(), key)
	require.NoError(t, err)
	return r.Remaining
}

func TestReservation_OfAWindow(t *testing.T) {
	t.Parallel()
	c, rdb, _, name := shared(t)
	for what, k := range longWindows(c) {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			_, err := k.AllowN(ctx, name, 5)
			require.NoError(t, err)
			require.NotContains(t, rdb.Get(ctx, k.RedisKey(name)).Val(), "@", "only charges that can be settled write a stamp")
			r, err := k.Reserve(ctx, name, 60)
			require.NoError(t, err)
			require.Zero(t, r.Delay())
			_, err = k.Reserve(ctx, name, 36)
			require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
			require.EqualValues(t, 35, remaining(t, k, name), "nothing was taken")

			// Scripts that rewrite the state keep what is needed to settle.
			for _, n := range []int64{5, 10} {
				res, err := k.AllowN(ctx, name, n)
				require.NoError(t, err)
				require.True(t, res.Allowed)
				res, err = c.All(k.Part(name), c.Limiter("other", ratelimit.PerHour(100)).Part(name)).AllowN(ctx, n)
				require.NoError(t, err)
				require.True(t, res.Allowed)
			}
			other, err := k.Reserve(ctx, name, 2)
			require.NoError(t, err)
			require.EqualValues(t, 3, remaining(t, k, name))
			require.NoError(t, r.Settle(ctx, 20))
			require.EqualValues(t, 43, remaining(t, k, name))
			require.NoError(t, r.Settle(ctx, 0), "does nothing")
			require.NoError(t, other.Settle(ctx, 0))
			require.EqualValues(t, 45, remaining(t, k, name))
		})
	}
}

// Reset ends what can be given back.
func TestReservation_SettleAfterReset(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	limiters := longWindows(c)
	limiters["GCRA"] = c.Limiter("k", ratelimit.PerDay(100))
	for what, k := range limiters {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			r, err := k.Reserve(ctx, name, 60)
			require.NoError(t, err)
			require.NoError(t, k.Reset(ctx, name))
			after, err := k.Reserve(ctx, name, 60)
			require.NoError(t, err)
			require.NoError(t, r.Settle(ctx, 0))
			require.EqualValues(t, 40, remaining(t, k, name))
			require.NoError(t, after.Settle(ctx, 10))
			require.EqualValues(t, 90, remaining(t, k, name))
		})
	}
}

// A debt of a window is bounded, and nothing is granted before it is paid.
func TestReservation_SettleBooksADebtOfAWindow(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	for what, k := range longWindows(c) {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			r, err := k.Reserve(ctx, name, 60)
			require.NoError(t, err)
			require.NoError(t, r.Settle(ctx, 80))
			require.EqualValues(t, 20, remaining(t, k, name))
			r, err = k.Reserve(ctx, name, 1)
			require.NoError(t, err)
			require.NoError(t, r.Settle(ctx, 51))
			require.Zero(t, remaining(t, k, name), "30 count in the next window")
			_, err = k.Reserve(ctx, name, 1)
			require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
			r, err = k.With(ratelimit.Limit{Rate: 1000, Per: 24 * 365 * time.Hour, Burst: 1000}).Reserve(ctx, name+"2", 1)
			require.NoError(t, err)
			var debt *ratelimit.DebtError
			require.ErrorAs(t, r.Settle(ctx, 3001), &debt)
			require.EqualValues(t, 1999, debt.Booked)
			require.EqualValues(t, 1001, debt.Dropped)
			require.NoError(t, r.Settle(ctx, 3001), "does nothing")
		})
	}
}

// In the windows that follow, a debt counts as if it were charged there.
func TestReservation_ADebtCountsInTheNextWindow(t *testing.T) {
	t.Parallel()
	const per = 500 * time.Millisecond
	for what, by := range map[string]ratelimit.LimiterOption{"fixed windows": byWindows, "sliding windows": bySliding} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, _, _, name := shared(t)
			ctx := t.Context()
			k := c.Limiter("k", ratelimit.Limit{Rate: 100, Per: per, Burst: 100}, by)
			began := time.Now()
			r, err := k.Reserve(ctx, name, 1)
			require.NoError(t, err)
			require.NoError(t, r.Settle(ctx, 200))
			// Two windows are used up, so a whole window is available only in the third.
			require.NoError(t, k.WaitN(within(t, patience), name, 100))
			require.Greater(t, time.Since(began), 2*per-10*time.Millisecond)
		})
	}
}

// Reservations made at once can be given back in any order and completely.
func TestReservation_SettlesInAnyOrder(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	ctx := t.Context()
	limiters := longWindows(c)
	limiters["GCRA"] = c.Limiter("k", ratelimit.PerDay(100))
	for what, k := range limiters {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(20) {
				key, rng := fmt.Sprint(name, seed), rand.New(rand.NewPCG(seed, 1))
				var all []*ratelimit.Reservation
				for range 10 {
					r, err := k.Reserve(ctx, key, 10)
					require.NoError(t, err)
					all = append(all, r)
				}
				rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
				for i, r := range all {
					require.NoError(t, r.Settle(ctx, int64(i%3)))
					require.Zero(t, r.Delay())
				}
				require.InDelta(t, 91, remaining(t, k, key), 1, "seed %d", seed)
			}
		})
	}
}

// What is given back is there for others at once, whatever waiters have been granted since.
func TestReservation_ReturnsWhatIsBeforeThePermitsOfWaiters(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	ctx := t.Context()
	k := c.Limiter("k", ratelimit.PerDay(100))
	before, err := k.Reserve(ctx, name, 30)
	require.NoError(t, err)
	require.NoError(t, k.WaitN(ctx, name, 30))
	after, err := k.Reserve(ctx, name, 30)
	require.NoError(t, err)
	require.NoError(t, before.Settle(ctx, 0))
	require.EqualValues(t, 40, remaining(t, k, name))
	require.NoError(t, after.Settle(ctx, 0))
	require.EqualValues(t, 70, remaining(t, k, name))
}

// A debt of a window under a shorter limit lasts as long as the window that it follows.
func TestReservation_ADebtUnderAShorterWindow(t *testing.T) {
	t.Parallel()
	c, rdb, _, name := shared(t)
	ctx := t.Context()
	long := c.Limiter("k", ratelimit.PerHour(100), byWindows)
	short := long.With(ratelimit.PerMinute(100))
	r, err := short.Reserve(ctx, name, 1)
	require.NoError(t, err)
	require.NoError(t, second(long.AllowN(ctx, name, 99)))
	require.NoError(t, r.Settle(ctx, 50))
	other := newClient(t, rdb).Limiter("k", ratelimit.PerMinute(100), byWindows)
	res, err := other.AllowN(ctx, name, 100)
	require.NoError(t, err)
	require.False(t, res.Allowed)
}

// No debt is charged beyond a hundred years, and the bound of WithDebt is exact.
func TestReservation_TheBoundOfADebt(t *testing.T) {
	t.Parallel()
	c, rdb, _, name := shared(t)
	ctx := t.Context()
	for i, k := range []*ratelimit.Limiter{
		c.Limiter("k0", ratelimit.Limit{Rate: 1, Per: ratelimit.MaxPer, Burst: 10}),
		c.Limiter("k1", ratelimit.PerHour(10), ratelimit.WithDebt(ratelimit.MaxRate)),
		c.Limiter("k2", ratelimit.PerDay(1), ratelimit.WithDebt(ratelimit.MaxRate)),
	} {
		r, err := k.Reserve(ctx, name, 0)
		require.NoError(t, err)
		var debt *ratelimit.DebtError
		require.ErrorAs(t, r.Settle(ctx, math.MaxInt64), &debt)
		require.Positive(t, debt.Booked)
		res, err := newClient(t, rdb).Limiter(fmt.Sprint("k", i), k.Limit()).AllowN(ctx, name, 1)
		require.NoError(t, err)
		require.False(t, res.Allowed)
		require.Positive(t, rdb.PTTL(ctx, k.RedisKey(name)).Val())
	}
	for bound, used := range map[int64]int64{0: 100, 5: 105, 100: 200} {
		r, err := c.Limiter("exact", ratelimit.PerDay(100), ratelimit.WithDebt(bound)).Reserve(ctx, fmt.Sprint(name, bound), 0)
		require.NoError(t, err)
		require.NoError(t, r.Settle(ctx, used))
	}
}

// A debt is not charged to a state of a later version.
func TestReservation_ADebtLeavesAStateOfALaterVersion(t *testing.T) {
	t.Parallel()
	c, rdb, _, name := shared(t)
	ctx := t.Context()
	k := c.Limiter("k", ratelimit.PerHour(10))
	r, err := k.Reserve(ctx, name, 0)
	require.NoError(t, err)
	later := "5:1:2:3:4:v9"
	require.NoError(t, rdb.Set(ctx, k.RedisKey(name), later, time.Second*5).Err())
	var debt *ratelimit.DebtError
	require.ErrorAs(t, r.Settle(ctx, 3), &debt)
	require.Zero(t, debt.Booked)
	require.Equal(t, later, rdb.Get(ctx, k.RedisKey(name)).Val())
}

// A charge that was made ahead under a smaller limit is not given back under a larger one.
func TestReservation_ReturnsBesideAReservationUnderASmallerLimit(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	ctx := t.Context()
	big := c.Limiter("k", ratelimit.PerHour(100))
	small := big.With(ratelimit.Limit{Rate: 10, Per: time.Hour, Burst: 1})
	first, err := big.Reserve(ctx, name, 1)
	require.NoError(t, err)
	ahead, err := small.Reserve(ctx, name, 1)
	require.NoError(t, err)
	require.Greater(t, ahead.Delay(), 30*time.Second)
	_, err = first.Cancel(ctx)
	require.NoError(t, err)
	res, err := small.Allow(ctx, name)
	require.NoError(t, err)
	require.False(t, res.Allowed)
	require.Greater(t, res.RetryAfter, 6*time.Minute+30*time.Second)
}
