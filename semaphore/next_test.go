package semaphore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// What a process releases reaches its own waiter in one round trip, if no other process is ahead of it.
func TestRelease_TheOwnWaiterAsksInTheSameRoundTrip(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		line := redistest.Shared(t).Client(t) // its calls are not counted
		rdb, name, trips := redistest.Shared(t).Client(t), redistest.Name(t), new(scriptCounter)
		s := k.newWoken(t, rdb, name)
		s.setPermits(t, 1)
		release, err := s.acquire(t.Context(), 1)
		require.NoError(t, err)
		rdb.AddHook(trips)
		const turns = 20
		inOne := 0
		for range turns {
			next, _ := startWaiting(t, s, 1)
			k.awaitLine(t, line, name, 1)
			before := trips.roundTrips()
			require.NoError(t, release(t.Context()))
			release = <-next
			if trips.roundTrips()-before == 1 {
				inOne++
			}
		}
		t.Logf("%d of %d hand-overs in one round trip", inOne, turns)
		require.Positive(t, inOne) // not all: the reply to the waiter may still be on its way when the release begins
		require.NoError(t, release(t.Context()))
		require.EqualValues(t, 1, available(t, s))
	})
}

// If the waiter has asked before the release was executed, because Redis did not know the script of the release, it asks
// again.
func TestRelease_OfAnUnknownScriptTellsTheOwnWaiter(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		rdb, name := redistest.Start(t).Client(t), redistest.Name(t)
		s, other := k.newWoken(t, rdb, name), k.newWoken(t, rdb, name+"other")
		s.setPermits(t, 1)
		other.setPermits(t, 2)
		release, err := s.acquire(t.Context(), 1)
		require.NoError(t, err)
		next, _ := startWaiting(t, s, 1)
		k.awaitLine(t, rdb, name, 1)
		require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
		_, err = other.acquire(t.Context(), 1) // Redis knows this script again
		require.NoError(t, err)
		require.NoError(t, release(t.Context()))
		select {
		case release = <-next:
			require.NoError(t, release(t.Context()))
		case <-within(t, testTimeout).Done():
			require.Fail(t, "it was not told")
		}
	})
}
