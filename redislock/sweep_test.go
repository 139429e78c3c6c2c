package redislock_test

import (
	"errors"
	"fmt"
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
	w := newWheel(t)
	// Not in subtests, which would wait for their turn among those of other tests.
	redistest.Each(t, instants, func(i int) error {
		name := redistest.Name(t)
		l, err := c.Mutex(name, redislock.WithLease(safeLease)).Lock(t.Context())
		if err != nil {
			return err
		}
		first := l.Deadline()
		// The first renewal falls between a sixth and a third of the lease.
		part := time.Duration(i) * safeLease / 6 / time.Duration(instants)
		if err := w.Sleep(t.Context(), safeLease/6+part); err != nil {
			return err
		}
		if l.Deadline().After(first) {
			renewed.Add(1)
		}
		if err := l.Unlock(t.Context()); err != nil {
			return err
		}
		if err := l.Err(); !errors.Is(err, redislock.ErrNotHeld) {
			return fmt.Errorf("after Unlock: %v", err) //nolint:errorlint // it may be nil
		}
		next, err := other.Mutex(name, redislock.WithLease(time.Minute)).TryLock(t.Context())
		if err != nil {
			return err
		}
		pttl, err := rdb.PTTL(t.Context(), name).Result()
		if err != nil {
			return err
		}
		if pttl < 50*time.Second {
			return fmt.Errorf("the next hold is shortened to %v", pttl)
		}
		return next.Unlock(t.Context())
	})
	t.Logf("%d of %d unlocks fell after the first renewal", renewed.Load(), instants)
	require.Greater(t, renewed.Load(), few, "some unlocks fall before the first renewal, some after")
	require.Less(t, renewed.Load(), int64(instants)-few)
	dialer.Delay(0, 0)
}
