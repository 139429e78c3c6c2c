package ratelimit_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// tryReserver makes reservations from a fresh limit of 100 permits, which do not return during a test.
type tryReserver struct {
	tryReserve func(ctx context.Context, n int64) (ratelimit.Result, error)
	peek       func(ctx context.Context) (ratelimit.Result, error)
	parts      int
	cost       int64 // permits of a request, from each part
	bound      int64 // permits that a debt may use in all
}

// used returns what n requests use, for Settle.
func (k *tryReserver) used(n int64) []int64 { return slices.Repeat([]int64{n * k.cost}, k.parts) }

func tryReservers(t *testing.T, c *ratelimit.Client, name string) map[string]tryReserver {
	t.Helper()
	limit := ratelimit.Limit{Rate: 100, Per: 24 * 365 * time.Hour, Burst: 100}
	all := map[string]tryReserver{}
	var parts []ratelimit.Part
	for _, a := range shadowAlgorithms {
		prefix := "alone-" + a.String()
		k := c.Limiter(prefix, limit, ratelimit.WithAlgorithm(a))
		all[a.String()] = tryReserver{
			func(ctx context.Context, n int64) (ratelimit.Result, error) { return k.TryReserve(ctx, name, n) },
			func(ctx context.Context) (ratelimit.Result, error) { return k.Peek(ctx, name) }, 1, 1, 200,
		}
		parts = append(parts, c.Limiter("part-"+a.String(), limit, ratelimit.WithAlgorithm(a)).Part(name).Cost(2))
	}
	l := c.StoredLimiter(name)
	require.NoError(t, l.SetRate(t.Context(), limit))
	all["log"] = tryReserver{l.TryReserve, l.Peek, 1, 1, 200}
	several, one := c.All(parts...), c.All(c.Limiter("one", limit).Part(name))
	costly := c.All(c.Limiter("costly", limit).Part(name).Cost(2))
	all["All"] = tryReserver{several.TryReserve, several.Peek, 3, 2, 200}
	all["All of one"] = tryReserver{one.TryReserve, one.Peek, 1, 1, 200}
	all["All of one with a cost"] = tryReserver{costly.TryReserve, costly.Peek, 1, 2, 200}
	return all
}

// A request that TryReserve grants is settled with each of its limits.
// Guarantees: Q22.
func TestTryReserve_SettlesEachLimit(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	for what, k := range tryReservers(t, c, name) {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ctx, whole := t.Context(), 100/k.cost
			requireRemaining := func(n int64) {
				t.Helper()
				r, err := k.peek(ctx)
				require.NoError(t, err)
				require.Equal(t, n, r.Remaining)
				for _, part := range r.Parts {
					require.Equal(t, n*k.cost, part.Remaining)
				}
			}
			first, err := k.tryReserve(ctx, 30)
			require.NoError(t, err)
			require.True(t, first.Allowed)
			require.EqualValues(t, 30, first.Granted)
			require.Equal(t, whole-30, first.Remaining)
			require.Zero(t, first.Reservation.Delay())
			requireRemaining(whole - 30)
			second, err := k.tryReserve(ctx, 20)
			require.NoError(t, err)
			require.True(t, second.Allowed)
			denied, err := k.tryReserve(ctx, whole-40)
			require.NoError(t, err)
			require.False(t, denied.Allowed)
			require.Nil(t, denied.Reservation)
			require.NoError(t, denied.Reservation.Settle(ctx, k.used(5)...))
			requireRemaining(whole - 50)

			require.NoError(t, first.Reservation.Settle(ctx, k.used(10)...))
			requireRemaining(whole - 30)
			require.NoError(t, first.Reservation.Settle(ctx, k.used(0)...), "does nothing")
			given, err := first.Reservation.Cancel(ctx)
			require.NoError(t, err)
			require.False(t, given)
			given, err = second.Reservation.Cancel(ctx)
			require.NoError(t, err)
			require.True(t, given)
			requireRemaining(whole - 10)

			third, err := k.tryReserve(ctx, 0)
			require.NoError(t, err)
			require.NoError(t, third.Reservation.Settle(ctx, k.used(5)...))
			requireRemaining(whole - 15)
			require.NoError(t, third.Reservation.Settle(ctx, k.used(5)...), "does nothing")
			requireRemaining(whole - 15)

			fourth, err := k.tryReserve(ctx, 10)
			require.NoError(t, err)
			var debt *ratelimit.DebtError
			require.ErrorAs(t, fourth.Reservation.Settle(ctx, k.used(1<<61)...), &debt)
			require.Equal(t, k.bound-25*k.cost, debt.Booked)
			require.Equal(t, (1<<61-10)*k.cost, debt.Booked+debt.Dropped)
			require.Len(t, debt.Parts, len(denied.Parts))
			for _, part := range debt.Parts {
				require.Equal(t, name, part.Key)
				require.Equal(t, [2]int64{debt.Booked, debt.Dropped}, [2]int64{part.Booked, part.Dropped})
			}
			denied, err = k.tryReserve(ctx, 1)
			require.NoError(t, err)
			require.False(t, denied.Allowed)
			require.NoError(t, fourth.Reservation.Settle(ctx, k.used(1<<61)...), "does nothing")
		})
	}
}

// Of an All each part is settled in its own permits.
// Guarantees: Q22.
func TestTryReserve_SettlesThePartsOfAnAll(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	ctx := t.Context()
	tokens := c.Limiter("tokens", ratelimit.PerDay(10_000), ratelimit.WithDebt(500))
	requests := c.Limiter("requests", ratelimit.PerDay(10), bySliding)
	requireLeft := func(wantTokens, wantRequests int64) {
		t.Helper()
		require.Equal(t, []int64{wantTokens, wantRequests}, []int64{remaining(t, tokens, name), remaining(t, requests, name)})
	}
	all := c.All(tokens.Part(name).Cost(2000), requests.Part(name))
	r, err := all.TryReserve(ctx, 1)
	require.NoError(t, err)
	requireLeft(8000, 9)
	for _, used := range [][]int64{nil, {700}, {700, 1, 1}, {700, -1}} {
		err := r.Reservation.Settle(ctx, used...)
		require.ErrorIs(t, err, cogwheel.ErrInvalid)
		requireLeft(8000, 9)
	}
	require.NoError(t, r.Reservation.Settle(ctx, 700, 1))
	requireLeft(9300, 9)

	r, err = all.TryReserve(ctx, 1)
	require.NoError(t, err)
	require.ErrorIs(t, r.Reservation.Settle(ctx, 700), cogwheel.ErrInvalid)
	given, err := r.Reservation.Cancel(ctx)
	require.NoError(t, err)
	require.False(t, given, "the estimate stays charged")
	require.NoError(t, r.Reservation.Settle(ctx, 0, 0))
	requireLeft(9300, 9)

	r, err = all.TryReserve(ctx, 1)
	require.NoError(t, err)
	require.NoError(t, r.Reservation.Settle(ctx, 300, 3), "one gives back, the other charges a debt")
	requireLeft(9000, 6)

	r, err = all.TryReserve(ctx, 1)
	require.NoError(t, err)
	err = r.Reservation.Settle(ctx, 10_000, 2)
	require.ErrorContains(t, err, `a debt of 8000 permits of "tokens" is above the bound, 7500 were charged`)
	var debt *ratelimit.DebtError
	require.ErrorAs(t, err, &debt)
	require.Equal(t, ratelimit.DebtError{Booked: 7500, Dropped: 500, Parts: []ratelimit.PartDebt{
		{Name: "tokens", Key: name, Booked: 7500, Dropped: 500}, {Name: "requests", Key: name, Booked: 1},
	}}, *debt)
	requireLeft(0, 4)
}

// What a limit did not charge of a debt is in the error of the Settle that succeeds for all, also if it names a greater
// number than the one before, which failed for another limit.
func TestTryReserve_ADroppedDebtIsNotForgotten(t *testing.T) {
	t.Parallel()
	c, rdb, _, name := shared(t)
	ctx := t.Context()
	tokens := c.Limiter("tokens", ratelimit.PerDay(1000), ratelimit.WithDebt(400))
	calls := c.Limiter("calls", ratelimit.PerDay(10))
	r, err := c.All(tokens.Part(name).Cost(1000), calls.Part(name)).TryReserve(ctx, 1)
	require.NoError(t, err)
	key := calls.RedisKey(name)
	require.NoError(t, rdb.Rename(ctx, key, key+":kept").Err())
	require.NoError(t, rdb.RPush(ctx, key, "x").Err())
	require.ErrorIs(t, r.Reservation.Settle(ctx, 3000, 5), ratelimit.ErrWrongKind)
	require.NoError(t, rdb.Rename(ctx, key+":kept", key).Err())
	var debt *ratelimit.DebtError
	require.ErrorAs(t, r.Reservation.Settle(ctx, 3001, 5), &debt)
	require.Equal(t, []ratelimit.PartDebt{
		{Name: "tokens", Key: name, Booked: 400, Dropped: 1601}, {Name: "calls", Key: name, Booked: 4},
	}, debt.Parts)
}

// A request in the shadow of a limit is charged if the limit grants it, and can be settled.
func TestTryReserve_InShadow(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	ctx := t.Context()
	for _, a := range shadowAlgorithms {
		k := c.Limiter("k", ratelimit.PerDay(10), ratelimit.WithAlgorithm(a), ratelimit.WithShadow())
		r, err := k.TryReserve(ctx, name, 8)
		require.NoError(t, err)
		require.False(t, r.WouldDeny)
		over, err := k.TryReserve(ctx, name, 3)
		require.NoError(t, err)
		require.True(t, over.Allowed && over.WouldDeny)
		require.NoError(t, over.Reservation.Settle(ctx, 0))
		passed, err := k.Reserve(ctx, name, 3)
		require.NoError(t, err)
		require.NoError(t, passed.Settle(ctx, 0))
		require.NoError(t, r.Reservation.Settle(ctx, 1))
		made, err := k.Reserve(ctx, name, 9)
		require.NoError(t, err)
		require.Zero(t, remaining(t, k, name))
		given, err := made.Cancel(ctx)
		require.True(t, err == nil && given)
		require.EqualValues(t, 9, remaining(t, k, name))
	}
}

// While Redis is down the policy decides, and there is nothing to settle.
func TestTryReserve_ByThePolicy(t *testing.T) {
	t.Parallel()
	for what, policy := range map[string]ratelimit.Policy{"open": ratelimit.FailOpen(), "closed": ratelimit.FailClosed()} {
		d := &redistest.FaultDialer{}
		server := redistest.Start(t)
		c := newClient(t, server.Client(t, func(o *redis.Options) { o.Dialer = d.Dial }), ratelimit.WithPolicy(policy))
		d.Set(redistest.Refuse)
		r, err := c.Limiter("k", ratelimit.PerDay(10)).TryReserve(t.Context(), "u", 3)
		if what == "closed" {
			require.ErrorIs(t, err, ratelimit.ErrUnavailable)
		} else {
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.Equal(t, ratelimit.SourceDegraded, r.Source)
		}
		require.Nil(t, r.Reservation)
	}
}

// A debt whose reply is lost is sent again; a return is not.
// Guarantees: Q22, Q38.
func TestReservation_SettleAfterALostReply(t *testing.T) {
	t.Parallel()
	for _, a := range shadowAlgorithms {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			d, name := &redistest.FaultDialer{}, redistest.Name(t)
			rdb := redistest.Shared(t).Client(t, func(o *redis.Options) { o.Dialer = d.Dial })
			c := newClient(t, rdb, ratelimit.WithTimeout(patience))
			ctx := t.Context()
			k := c.Limiter("k", ratelimit.PerDay(100), ratelimit.WithAlgorithm(a))
			r, err := k.Reserve(ctx, name, 10)
			require.NoError(t, err)
			d.LoseReply("evalsha", 1, redistest.Cut)
			require.NoError(t, r.Settle(ctx, 20))
			require.EqualValues(t, 70, remaining(t, k, name), "charged twice, because the first reply was lost")

			r, err = k.Reserve(ctx, name, 10)
			require.NoError(t, err)
			d.LoseReply("evalsha", 1, redistest.Cut)
			require.ErrorIs(t, r.Settle(ctx, 5), ratelimit.ErrUnavailable)
			require.EqualValues(t, 65, remaining(t, k, name))
			require.ErrorIs(t, r.Settle(ctx, 5), ratelimit.ErrUnavailable, "it is not sent again")
			require.EqualValues(t, 65, remaining(t, k, name))
		})
	}
}

func TestTryReserve_InvalidArguments(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	k := c.Limiter("k", ratelimit.PerDay(10))
	_, err := k.TryReserve(t.Context(), name, 11)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	_, err = k.TryReserve(t.Context(), name, -1)
	require.ErrorIs(t, err, cogwheel.ErrInvalid)
	r, err := k.TryReserve(t.Context(), name, 1)
	require.NoError(t, err)
	require.ErrorIs(t, r.Reservation.Settle(t.Context(), -1), cogwheel.ErrInvalid)
	require.ErrorIs(t, r.Reservation.Settle(nil, 1), cogwheel.ErrInvalid) //nolint:staticcheck // it is what is tested
	l := c.StoredLimiter(name)
	require.NoError(t, l.SetRate(t.Context(), ratelimit.PerDay(10)))
	_, err = l.TryReserve(t.Context(), 11)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	_, err = c.StoredLimiter(name+"2").TryReserve(t.Context(), 1)
	require.ErrorIs(t, err, ratelimit.ErrNotSet)
	_, err = c.All(k.Part(name).Cost(6)).TryReserve(t.Context(), 2)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
}
