package redislock_test

import (
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/testsize"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// A renewal may be in flight during Unlock. After Unlock has returned, the renewal must not prolong anything.
func TestSweep_UnlockRacesWithRenewal(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	c, dialer, rdb := newFaultyClient(t)
	other := newClient(t, rdb)
	instants, few := testsize.Of(15, 40), testsize.Of[int64](0, 2) // a stall of the machine spoils several
	dialer.Delay(10*time.Millisecond, 0)
	var renewed atomic.Int64
	t.Run("at once", func(t *testing.T) {
		for i := range instants {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				name := redistest.Name(t)
				l := mustLock(t, c.Mutex(name, redislock.WithLease(safeLease)))
				first := l.Deadline()
				// The first renewal falls between a sixth and a third of the lease.
				part := time.Duration(i) * safeLease / 6 / time.Duration(instants)
				require.NoError(t, newWheel(t).Sleep(t.Context(), safeLease/6+part))
				if l.Deadline().After(first) {
					renewed.Add(1)
				}
				require.NoError(t, l.Unlock(t.Context()))
				require.ErrorIs(t, l.Err(), redislock.ErrNotHeld)
				next, err := other.Mutex(name, redislock.WithLease(time.Minute)).TryLock(t.Context())
				require.NoError(t, err)
				pttl, err := rdb.PTTL(t.Context(), name).Result()
				require.NoError(t, err)
				require.Greater(t, pttl, 50*time.Second, "the next hold is not shortened")
				require.NoError(t, next.Unlock(t.Context()))
			})
		}
	})
	t.Logf("%d of %d unlocks fell after the first renewal", renewed.Load(), instants)
	require.Greater(t, renewed.Load(), few, "some unlocks fall before the first renewal, some after")
	require.Less(t, renewed.Load(), int64(instants)-few)
	dialer.Delay(0, 0)
}
