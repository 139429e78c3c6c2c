package semaphore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// Waiters whose processes have died keep no permits from others: whoever finds that permits are free has them woken.
// Guarantees: S7.
func TestFair_DeadWaitersKeepNothing(t *testing.T) {
	t.Parallel()
	for what, wants := range map[string]int{"one wants little": 1, "one wants more than there is": 3} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
			s := fairKind.newWoken(t, rdb, name)
			s.setPermits(t, 2)
			fairKind.ghost(t, rdb, name, wants, false)
			_, err := s.tryAcquire(t.Context(), 1)
			require.ErrorIs(t, err, semaphore.ErrNoPermits, "another came before")
			require.Empty(t, fairKind.lineOf(t, rdb, name), "which is gone, as it turns out")
			fairKind.ghost(t, rdb, name, wants, false)
			release, err := s.acquire(within(t, testTimeout), 1)
			require.NoError(t, err)
			require.NoError(t, release(t.Context()))
		})
	}
}

// A living request behind dead ones keeps its place.
func TestFair_TryAcquireDoesNotOvertakeTheLivingBehindTheDead(t *testing.T) {
	t.Parallel()
	c, rdb, name := newSharedClient(t)
	s := c.FairSemaphore(name, 0)
	mustSetPermits(t, s, 2)
	first, second := mustAcquire(t, s, 1), mustAcquire(t, s, 1)
	fairKind.ghost(t, rdb, name, 1, false)
	got := make(chan *semaphore.Grant, 1)
	s.AcquireFunc(t.Context(), 2, func(g *semaphore.Grant, err error) { got <- g })
	fairKind.awaitLine(t, rdb, name, 2)
	state, err := s.State(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, state.Waiting, "nobody has noticed that one is gone")
	other := newClient(t, rdb).FairSemaphore(name, 0)
	require.NoError(t, first.Release(t.Context()))
	_, err = other.TryAcquire(t.Context(), 1)
	require.ErrorIs(t, err, semaphore.ErrNoPermits, "one is free, but another needs it")
	require.NoError(t, second.Release(t.Context()))
	require.NoError(t, (<-got).Release(t.Context()))
}
