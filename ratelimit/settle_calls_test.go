package ratelimit_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// settling returns a client whose network can fail, and whose circuit stays closed.
func settling(t *testing.T, opts ...ratelimit.Option) (*ratelimit.Client, *redistest.FaultDialer, string) {
	t.Helper()
	d := &redistest.FaultDialer{}
	rdb := redistest.Shared(t).Client(t, func(o *redis.Options) { o.Dialer = d.Dial })
	for _, s := range scripts.All() { // or the answer that is lost says only that a script is not there
		require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source()).Err())
	}
	opts = append([]ratelimit.Option{ratelimit.WithTimeout(patience), ratelimit.WithBreaker(1<<30, time.Second)}, opts...)
	c := newClient(t, rdb, opts...)
	t.Cleanup(func() { d.Set(redistest.Pass); d.Reset() })
	return c, d, redistest.Name(t)
}

func ended(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// A deferred Cancel does not give back what was used, although the Settle before it has failed.
// Guarantees: Q22.
func TestReservation_CancelDoesNothingAfterAFailedSettle(t *testing.T) {
	t.Parallel()
	c, _, name := settling(t)
	for what, k := range tryReservers(t, c, name) {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			requireUsed := func(n int64) {
				t.Helper()
				state, err := k.peek(ctx)
				require.NoError(t, err)
				require.Equal(t, 100/k.cost-n, state.Remaining)
			}
			r, err := k.tryReserve(ctx, 10)
			require.NoError(t, err)
			require.ErrorIs(t, r.Reservation.Settle(ended(t), k.used(20)...), context.Canceled)
			given, err := r.Reservation.Cancel(ctx)
			require.NoError(t, err)
			require.False(t, given)
			requireUsed(10)
			require.NoError(t, r.Reservation.Settle(ctx, k.used(20)...))
			requireUsed(20)

			r, err = k.tryReserve(ctx, 10)
			require.NoError(t, err)
			require.ErrorIs(t, r.Reservation.Settle(ctx, -1), cogwheel.ErrInvalid)
			given, err = r.Reservation.Cancel(ctx)
			require.NoError(t, err)
			require.False(t, given, "the estimate stays charged, or a wrong argument would make the work free")
			requireUsed(30)
		})
	}
}

// Nothing is lost by a return that was not sent.
// Guarantees: Q22.
func TestReservation_AReturnThatWasNotSentCanBeRepeated(t *testing.T) {
	t.Parallel()
	c, _, name := settling(t)
	for what, k := range tryReservers(t, c, name) {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			r, err := k.tryReserve(ctx, 30)
			require.NoError(t, err)
			require.ErrorIs(t, r.Reservation.Settle(ended(t), k.used(10)...), context.Canceled)
			require.NoError(t, r.Reservation.Settle(ctx, k.used(10)...))
			state, err := k.peek(ctx)
			require.NoError(t, err)
			require.Equal(t, 100/k.cost-10, state.Remaining)
		})
	}
}

// A settlement that the open circuit refuses was not sent.
func TestReservation_AReturnThatTheCircuitRefusesCanBeRepeated(t *testing.T) {
	t.Parallel()
	c, d, name := settling(t, ratelimit.WithBreaker(1, 10*time.Millisecond), ratelimit.WithPolicy(ratelimit.FailClosed()))
	ctx := t.Context()
	k := c.Limiter("k", ratelimit.PerDay(100))
	r, err := k.Reserve(ctx, name, 30)
	require.NoError(t, err)
	d.Set(redistest.Refuse)
	d.Reset()
	_, err = k.Peek(ctx, "another")
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	require.ErrorIs(t, r.Settle(ctx, 10), ratelimit.ErrUnavailable)
	d.Set(redistest.Pass)
	await(t, "the circuit closes", func() bool { return r.Settle(ctx, 10) == nil })
	require.EqualValues(t, 90, remaining(t, k, name))
}

// A debt is charged although a return was not answered before, as if that was made. Otherwise nil would be returned
// for permits that nobody is charged for.
// Guarantees: Q22.
func TestReservation_ADebtIsChargedAfterAReturnThatWasNotAnswered(t *testing.T) {
	t.Parallel()
	c, d, name := settling(t)
	for what, k := range tryReservers(t, c, name) {
		t.Run(what, func(t *testing.T) {
			for _, used := range [][2]int64{{0, 15}, {4, 7}, {4, 12}} {
				ctx := t.Context()
				before, err := k.peek(ctx)
				require.NoError(t, err)
				r, err := k.tryReserve(ctx, 10)
				require.NoError(t, err)
				d.LoseReply("evalsha", 1, redistest.Cut)
				if used[0] == 0 {
					_, err = r.Reservation.Cancel(ctx)
				} else {
					err = r.Reservation.Settle(ctx, k.used(used[0])...)
				}
				require.ErrorIs(t, err, ratelimit.ErrUnavailable)
				require.NoError(t, r.Reservation.Settle(ctx, k.used(used[1])...))
				after, err := k.peek(ctx)
				require.NoError(t, err)
				require.Equal(t, used[1], before.Remaining-after.Remaining, "%d instead of %d of 10", used[1], used[0])
				require.NoError(t, r.Reservation.Settle(ctx, k.used(50)...), "does nothing")
			}
		})
	}
}

// The return that was not answered may not have been made. Then a later debt is charged above what was used.
func TestReservation_InDoubtADebtGrantsLess(t *testing.T) {
	t.Parallel()
	for _, a := range shadowAlgorithms {
		c, d, name := settling(t)
		ctx, cancel := context.WithCancel(t.Context())
		k := c.Limiter("k", ratelimit.PerDay(100), ratelimit.WithAlgorithm(a))
		r, err := k.Reserve(ctx, name, 10)
		require.NoError(t, err)
		call := d.LoseCall("evalsha", 1)
		go func() { <-call; cancel() }()
		require.ErrorIs(t, r.Settle(ctx, 4), context.Canceled)
		require.NoError(t, r.Settle(t.Context(), 7))
		require.EqualValues(t, 87, remaining(t, k, name))
	}
}

// A settlement that cannot be repeated fails again.
// Guarantees: Q22.
func TestReservation_AReturnThatWasNotAnsweredIsAnErrorAgain(t *testing.T) {
	t.Parallel()
	c, d, name := settling(t)
	ctx := t.Context()
	for _, a := range shadowAlgorithms {
		k := c.Limiter("k", ratelimit.PerDay(100), ratelimit.WithAlgorithm(a))
		r, err := k.Reserve(ctx, name, 10)
		require.NoError(t, err)
		d.LoseReply("evalsha", 1, redistest.Cut)
		require.ErrorIs(t, r.Settle(ctx, 4), ratelimit.ErrUnavailable)
		for _, used := range []int64{4, 1} {
			require.ErrorIs(t, r.Settle(ctx, used), ratelimit.ErrUnavailable)
			require.EqualValues(t, 96, remaining(t, k, name))
		}
	}
	l := c.StoredLimiter(name)
	require.NoError(t, l.SetRate(ctx, ratelimit.PerDay(100)))
	r, err := l.Reserve(ctx, 10)
	require.NoError(t, err)
	d.LoseReply("evalsha", 1, redistest.Cut)
	require.ErrorIs(t, r.Settle(ctx, 4), ratelimit.ErrUnavailable)
	require.NoError(t, r.Settle(ctx, 4), "the entry is another one by now")
	state, err := l.Peek(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 96, state.Remaining)
}

// After Close a call that has nothing to do returns nil.
func TestReservation_CallsAfterASettlementDoNothingAfterClose(t *testing.T) {
	t.Parallel()
	c, _, name := settling(t)
	ctx := t.Context()
	k := c.Limiter("k", ratelimit.PerDay(100))
	r, err := k.Reserve(ctx, name, 10)
	require.NoError(t, err)
	open, err := k.Reserve(ctx, name, 10)
	require.NoError(t, err)
	require.NoError(t, r.Settle(ctx, 5))
	require.NoError(t, c.Close(ctx))
	require.NoError(t, r.Settle(ctx, 5))
	given, err := r.Cancel(ctx)
	require.NoError(t, err)
	require.False(t, given)
	require.ErrorIs(t, open.Settle(ctx, 5), ratelimit.ErrClosed)
}

// All attempts of a debt share the time of WithTimeout.
func TestReservation_ADebtEndsWithinOneTimeout(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second
	c, d, name := settling(t, ratelimit.WithTimeout(timeout))
	ctx := t.Context()
	k := c.Limiter("k", ratelimit.PerDay(100))
	r, err := k.Reserve(ctx, name, 10)
	require.NoError(t, err)
	d.Set(redistest.Refuse)
	d.Reset()
	settled := make(chan error, 1)
	go func() { settled <- r.Settle(ctx, 20) }()
	require.Less(t, redistest.Running(t, func() {
		require.NoError(t, newWheel(t).Sleep(ctx, timeout*3/4))
		d.Set(redistest.BlackholeDown)
		require.ErrorIs(t, <-settled, ratelimit.ErrUnavailable)
	}), timeout*5/4, "with a timeout of its own, the last attempt would end after 1.5 timeouts or more")
}

// A debt is also sent again if the wheel is stopped.
func TestReservation_ADebtIsSentAgainWithAStoppedWheel(t *testing.T) {
	t.Parallel()
	w, err := wheel.New()
	require.NoError(t, err)
	c, d, name := settling(t, ratelimit.WithWheel(w))
	ctx := t.Context()
	k := c.Limiter("k", ratelimit.PerDay(100))
	r, err := k.Reserve(ctx, name, 10)
	require.NoError(t, err)
	_, err = w.Stop(ctx)
	require.NoError(t, err)
	d.LoseReply("evalsha", 1, redistest.Cut)
	require.NoError(t, r.Settle(ctx, 20))
	require.EqualValues(t, 70, remaining(t, k, name), "charged twice, because the first reply was lost")
}

// Calls for one Reservation wait for each other, each with its own context.
func TestReservation_ACallThatWaitsForAnotherEndsWithItsContext(t *testing.T) {
	t.Parallel()
	c, d, name := settling(t)
	k := c.Limiter("k", ratelimit.PerDay(100))
	r, err := k.Reserve(t.Context(), name, 10)
	require.NoError(t, err)
	open, leave := context.WithCancel(t.Context())
	defer leave()
	call := d.LoseCall("evalsha", 1)
	first := make(chan error, 1)
	go func() { first <- r.Settle(open, 20) }()
	<-call
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, r.Settle(short, 20), context.DeadlineExceeded)
	require.ErrorIs(t, r.Settle(ended(t), 20), context.Canceled)
	require.Empty(t, first, "the first call waits for its reply still")
	leave()
	require.ErrorIs(t, <-first, context.Canceled)
	require.NoError(t, r.Settle(t.Context(), 20))
	require.EqualValues(t, 80, remaining(t, k, name))
}

// A call that waits for another has one timeout too.
func TestReservation_ACallThatWaitsForAnotherEndsWithItsTimeout(t *testing.T) {
	t.Parallel()
	const timeout, callers = time.Second, 4
	c, d, name := settling(t, ratelimit.WithTimeout(timeout))
	k := c.Limiter("k", ratelimit.PerDay(100))
	r, err := k.Reserve(t.Context(), name, 10)
	require.NoError(t, err)
	d.Set(redistest.BlackholeDown)
	require.Less(t, redistest.Running(t, func() {
		settled := make(chan error, callers)
		for range callers {
			go func() { settled <- r.Settle(t.Context(), 20) }()
		}
		for range callers {
			require.ErrorIs(t, <-settled, ratelimit.ErrUnavailable)
		}
	}), 2*timeout, "one by one, they would take four timeouts")
}

// An All knows of its own returns: it does not deny by what it knew before, and its waiters ask at once.
func TestReservation_AnAllLearnsOfItsReturn(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	t.Run("requests", func(t *testing.T) {
		t.Parallel()
		ctx := t.Context()
		all := c.All(
			c.Limiter("a", ratelimit.PerDay(100)).Part(name),
			c.Limiter("b", ratelimit.PerDay(100), bySliding).Part(name).Cost(2),
			c.Limiter("c", ratelimit.PerDay(100)).Part(name),
		)
		r, err := all.TryReserve(ctx, 50)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		denied, err := all.Allow(ctx)
		require.NoError(t, err)
		require.False(t, denied.Allowed)
		require.NoError(t, r.Reservation.Settle(ctx, 40, 80, 40))
		granted, err := all.AllowN(ctx, 5)
		require.NoError(t, err)
		require.True(t, granted.Allowed, "%+v", granted)
	})
	t.Run("waiters", func(t *testing.T) {
		t.Parallel()
		ctx, shortest := t.Context(), time.Hour
		for i := range 3 {
			key := fmt.Sprint(name, i)
			all := c.All(
				c.Limiter("a", ratelimit.PerDay(100)).Part(key),
				c.Limiter("b", ratelimit.PerDay(100)).Part(key),
			)
			r, err := all.TryReserve(ctx, 100)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			waited := make(chan error, 1)
			all.WaitFunc(ctx, 1, func(err error) { waited <- err })
			// The waiter asks, and then once a second.
			require.NoError(t, newWheel(t).Sleep(ctx, 50*time.Millisecond))
			began := time.Now()
			require.NoError(t, r.Reservation.Settle(ctx, 1, 1))
			require.NoError(t, <-waited)
			shortest = min(shortest, time.Since(began))
		}
		require.Less(t, shortest, 800*time.Millisecond)
	})
}

// A request that was held back by waiters which have left meanwhile can be settled too.
func TestTryReserve_AfterTheWaitersHaveLeft(t *testing.T) {
	t.Parallel()
	for _, a := range shadowAlgorithms {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			c, d, name := settling(t)
			ctx := t.Context()
			k := c.Limiter("k", ratelimit.PerDay(100), ratelimit.WithAlgorithm(a))
			all, err := k.Reserve(ctx, name, 100)
			require.NoError(t, err)
			waited := make(chan error, 1)
			leave := k.WaitFunc(ctx, name, 1, func(err error) { waited <- err })
			_, err = k.Peek(ctx, name)
			require.NoError(t, err)
			d.Delay(0, 200*time.Millisecond)
			require.NoError(t, all.Settle(ctx, 10)) // the denial is forgotten, and the waiter asks
			tried := make(chan ratelimit.Result, 1)
			go func() {
				r, err := k.TryReserve(ctx, name, 10)
				if err != nil {
					t.Error(err)
				}
				tried <- r
			}()
			require.NoError(t, newWheel(t).Sleep(ctx, 50*time.Millisecond)) // the request only looks
			leave()
			require.ErrorIs(t, <-waited, context.Canceled)
			r := <-tried
			d.Delay(0, 0)
			if !r.Allowed { // the waiter was still there
				require.Nil(t, r.Reservation)
				return
			}
			given, err := r.Reservation.Cancel(ctx)
			require.NoError(t, err)
			require.True(t, given)
		})
	}
}
