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
	const lanes = 5
	rounds, few := testsize.Of(3, 8), testsize.Of[int64](0, 2) // a stall of the machine spoils one round of each lane
	dialer.Delay(10*time.Millisecond, 0)
	var renewed atomic.Int64
	t.Run("in lanes", func(t *testing.T) {
		for lane := range lanes {
			t.Run(strconv.Itoa(lane), func(t *testing.T) {
				t.Parallel()
				name, w := redistest.Name(t), newWheel(t)
				for i := range rounds {
					l := mustLock(t, c.Mutex(name, redislock.WithLease(safeLease)))
					first := l.Deadline()
					// The first renewal falls between a sixth and a third of the lease.
					part := time.Duration(lane+lanes*i) * safeLease / 6 / time.Duration(lanes*rounds)
					require.NoError(t, w.Sleep(t.Context(), safeLease/6+part))
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
				}
			})
		}
	})
	t.Logf("%d of %d unlocks fell after the first renewal", renewed.Load(), lanes*rounds)
	require.Greater(t, renewed.Load(), few, "some unlocks fall before the first renewal, some after")
	require.Less(t, renewed.Load(), int64(lanes*rounds)-few)
	dialer.Delay(0, 0)
}
