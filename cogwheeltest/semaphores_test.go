package cogwheeltest_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/semaphore"
)

// A semaphore of any kind does on the embedded server what it does on a real one.
func TestSemaphores(t *testing.T) {
	t.Parallel()
	behaviours := map[string]func(*testing.T, *world){
		"a CountingSemaphore bounds both processes, and wakes them": countsPermits,
		"a CountingSemaphore survives lost replies":                 countingLostReplies,
		"a CountingSemaphore refuses the wrong kind of key":         wrongKindOfSemaphore,
		"a FairSemaphore serves in the order of arrival":            fairPermits,
	}
	for kind, of := range semaphoreKinds {
		behaviours[kind+" is renewed for as long as it is held"] = func(t *testing.T, w *world) { grantRenewed(t, w, of) }
		behaviours[kind+" bounds both processes, and wakes them"] = func(t *testing.T, w *world) { grantBounds(t, w, of) }
		behaviours[kind+" is lost when its lease expires"] = func(t *testing.T, w *world) { grantExpires(t, w, of) }
		behaviours[kind+" goes to the next when its holder crashes"] = func(t *testing.T, w *world) { grantCrash(t, w, of) }
		behaviours[kind+" can be extended"] = func(t *testing.T, w *world) { grantExtended(t, w, of) }
		behaviours[kind+" survives lost replies"] = func(t *testing.T, w *world) { grantLostReplies(t, w, of) }
		behaviours[kind+" tells its state"] = func(t *testing.T, w *world) { grantState(t, w, of) }
	}
	inBubbles(t, behaviours)
}

type semaphoreOf = func(*testing.T, *semaphore.Client, ...semaphore.SemaphoreOption) *semaphore.Semaphore

// semaphoreKinds make the semaphore "n" of a process, with 3 permits.
var semaphoreKinds = map[string]semaphoreOf{
	"a Semaphore":     threePermits((*semaphore.Client).Semaphore),
	"a FairSemaphore": threePermits((*semaphore.Client).FairSemaphore),
}

func threePermits(
	of func(*semaphore.Client, string, int64, ...semaphore.SemaphoreOption) *semaphore.Semaphore,
) semaphoreOf {
	return func(t *testing.T, c *semaphore.Client, opts ...semaphore.SemaphoreOption) *semaphore.Semaphore {
		s := of(c, "n", 0, opts...)
		_, err := s.TrySetPermits(t.Context(), 3)
		require.NoError(t, err)
		return s
	}
}

func mustAcquire(t *testing.T, w *world, s *semaphore.Semaphore, n int64) *semaphore.Grant {
	t.Helper()
	g, err := s.Acquire(w.ctx, n)
	require.NoError(t, err)
	return g
}

// waitForPermits begins to wait for permits, which are then released.
func waitForPermits(w *world, s *semaphore.Semaphore, n int64) <-chan error {
	return calling(func() error {
		g, err := s.Acquire(w.ctx, n)
		if err != nil {
			return err
		}
		return g.Release(w.ctx)
	})
}

func countsPermits(t *testing.T, w *world) {
	first, second := w.semaphores[0].CountingSemaphore("n"), w.semaphores[1].CountingSemaphore("n")
	set, err := first.TrySetPermits(w.ctx, 3)
	require.NoError(t, err)
	require.True(t, set)
	require.NoError(t, first.Acquire(w.ctx, 2))
	require.ErrorIs(t, second.TryAcquire(w.ctx, 2), semaphore.ErrNoPermits)
	done := calling(func() error { return second.Acquire(w.ctx, 2) })
	requireWaiting(t, done)
	began := w.Now()
	require.NoError(t, first.Release(w.ctx, 1))
	requireDone(t, done)
	require.Equal(t, began, w.Now(), "by the message, not by a poll")
	require.NoError(t, first.AddPermits(w.ctx, 5))
	drained, err := first.Drain(w.ctx)
	require.NoError(t, err)
	require.EqualValues(t, 5, drained)
}

func countingLostReplies(t *testing.T, w *world) {
	s := w.semaphores[0].CountingSemaphore("n")
	_, err := s.TrySetPermits(w.ctx, 3)
	require.NoError(t, err)
	for _, call := range []func() error{
		func() error { return s.Acquire(w.ctx, 2) },
		func() error { return s.Release(w.ctx, 1) },
		func() error { return s.AddPermits(w.ctx, 1) },
	} {
		w.DropReplies(1, "n")
		require.NoError(t, call())
		require.Zero(t, w.PendingFaults())
	}
	free, err := s.Available(w.ctx)
	require.NoError(t, err)
	require.EqualValues(t, 3, free)
}

func wrongKindOfSemaphore(t *testing.T, w *world) {
	require.NoError(t, w.Client().Set(w.ctx, "n", "text", 0).Err())
	require.ErrorIs(t, w.semaphores[0].CountingSemaphore("n").Acquire(w.ctx, 1), semaphore.ErrWrongKind)
	require.NoError(t, w.Client().Del(w.ctx, "n").Err())
	require.NoError(t, w.Client().RPush(w.ctx, "n", "x").Err())
	_, err := w.semaphores[0].Semaphore("n", 0).Acquire(w.ctx, 1)
	require.ErrorIs(t, err, semaphore.ErrWrongKind)
}

func fairPermits(t *testing.T, w *world) {
	of := semaphoreKinds["a FairSemaphore"]
	s := [2]*semaphore.Semaphore{of(t, w.semaphores[0]), of(t, w.semaphores[1])}
	held := mustAcquire(t, w, s[0], 3)
	order := make(chan int, 6)
	for i := range 6 {
		s[i%2].AcquireFunc(w.ctx, 3, func(g *semaphore.Grant, err error) {
			order <- i
			if err == nil {
				err = g.Release(context.Background())
			}
			require.NoError(t, err)
		})
		w.Advance(time.Second)
	}
	require.NoError(t, held.Release(w.ctx))
	w.Advance(time.Minute)
	for i := range 6 {
		require.Equal(t, i, <-order)
	}
}

func grantRenewed(t *testing.T, w *world, of semaphoreOf) {
	g := mustAcquire(t, w, of(t, w.semaphores[0]), 3)
	other := of(t, w.semaphores[1])
	for range 60 {
		w.Advance(time.Minute)
		require.NoError(t, g.Err())
		_, err := other.TryAcquire(w.ctx, 1)
		require.ErrorIs(t, err, semaphore.ErrNoPermits)
	}
	require.NoError(t, g.Release(w.ctx))
	require.ErrorIs(t, g.Release(w.ctx), semaphore.ErrNotHeld)
}

func grantBounds(t *testing.T, w *world, of semaphoreOf) {
	g := mustAcquire(t, w, of(t, w.semaphores[0]), 2)
	next := waitForPermits(w, of(t, w.semaphores[1]), 2)
	requireWaiting(t, next)
	began := w.Now()
	require.NoError(t, g.Release(w.ctx))
	requireDone(t, next)
	require.Equal(t, began, w.Now(), "by the message, not by a poll")
}

func grantExpires(t *testing.T, w *world, of semaphoreOf) {
	s := of(t, w.semaphores[0])
	kept, lost := mustAcquire(t, w, s, 1), mustAcquire(t, w, s, 2)
	w.ExpirePermits("n", lost.IDs()...)
	other := mustAcquire(t, w, of(t, w.semaphores[1]), 2)
	w.Advance(semaphore.DefaultLease / 2)
	require.ErrorIs(t, lost.Err(), semaphore.ErrLost)
	require.NoError(t, kept.Err())
	require.NoError(t, other.Err())
	w.ExpirePermits("n")
	w.Advance(semaphore.DefaultLease / 2)
	require.ErrorIs(t, kept.Err(), semaphore.ErrLost)
	require.ErrorIs(t, other.Err(), semaphore.ErrLost)
}

func grantCrash(t *testing.T, w *world, of semaphoreOf) {
	crashed := w.NewClient()
	semaphores, err := semaphore.New(crashed, semaphore.WithWheel(w.Wheel()))
	require.NoError(t, err)
	g := mustAcquire(t, w, of(t, semaphores), 3)
	w.Isolate(crashed)
	next := waitForPermits(w, of(t, w.semaphores[1]), 1)
	w.Advance(semaphore.DefaultLease / 2)
	requireWaiting(t, next)
	w.Advance(semaphore.DefaultLease)
	require.ErrorIs(t, g.Err(), semaphore.ErrLost)
	requireDone(t, next)
	w.Rejoin(crashed)
	w.Advance(time.Minute)
	require.NoError(t, semaphores.Close(context.Background()))
}

func grantExtended(t *testing.T, w *world, of semaphoreOf) {
	g := mustAcquire(t, w, of(t, w.semaphores[0], semaphore.WithoutRenewal()), 1)
	require.NoError(t, g.Extend(w.ctx, time.Hour))
	w.Advance(50 * time.Minute)
	require.True(t, g.Valid())
	require.NoError(t, g.Release(w.ctx))
}

func grantLostReplies(t *testing.T, w *world, of semaphoreOf) {
	s := of(t, w.semaphores[0])
	w.DropReplies(1, "n")
	g := mustAcquire(t, w, s, 2)
	require.Zero(t, w.PendingFaults())
	w.DropReplies(1, "n")
	w.Advance(semaphore.DefaultLease / 2)
	require.Zero(t, w.PendingFaults())
	require.NoError(t, g.Err())
	w.DropReplies(1, "n")
	require.NoError(t, g.Release(w.ctx))
	require.Zero(t, w.PendingFaults())
	free, err := s.Available(w.ctx)
	require.NoError(t, err)
	require.EqualValues(t, 3, free)
}

func grantState(t *testing.T, w *world, of semaphoreOf) {
	s := of(t, w.semaphores[0])
	g := mustAcquire(t, w, s, 2)
	state, err := s.State(w.ctx)
	require.NoError(t, err)
	require.EqualValues(t, 2, state.Held)
	require.Contains(t, state.Permits, semaphore.Permit{ID: g.IDs()[0], Lease: semaphore.DefaultLease})
	require.NoError(t, s.AddPermits(w.ctx, 4))
	state, err = s.State(w.ctx)
	require.NoError(t, err)
	require.EqualValues(t, 7, state.Free+state.Held)
}
