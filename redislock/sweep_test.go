package redislock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// A renewal may be in flight during Unlock. After Unlock has returned, the renewal must not prolong anything.
func TestSweep_UnlockRacesWithRenewal(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	c, dialer, rdb := newFaultyClient(t)
	other := newClient(t, rdb)
	name := redistest.Name(t)
	const lease, rounds = 1500 * time.Millisecond, 20 // long enough to outlast a stall of a busy machine
	w := newWheel(t)
	dialer.Delay(10*time.Millisecond, 0)
	renewed := 0
	for i := range rounds {
		l := mustLock(t, c.Mutex(name, redislock.WithLease(lease)))
		first := l.Deadline()
		// The first renewal falls between a sixth and a third of the lease.
		require.NoError(t, w.Sleep(t.Context(), lease/6+lease/6*time.Duration(i)/rounds))
		if l.Deadline().After(first) {
			renewed++
		}
		require.NoError(t, l.Unlock(t.Context()))
		require.ErrorIs(t, l.Err(), redislock.ErrNotHeld)
		next, err := other.Mutex(name, redislock.WithLease(time.Minute)).TryLock(t.Context())
		require.NoError(t, err)
		pttl, err := rdb.PTTL(t.Context(), name).Result()
		require.NoError(t, err)
		require.Greater(t, pttl, 50*time.Second, "the next hold is not shortened")
		require.NoError(t, next.Unlock(t.Context()))
	}
	require.Greater(t, renewed, 2, "some unlocks fall before the first renewal, some after")
	require.Less(t, renewed, rounds-2)
	dialer.Delay(0, 0)
}
