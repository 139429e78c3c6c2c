package redislock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// On a wheel with long ticks a holder still learns of the end of its lease before the next holder acquires.
// Leases that are too short for that are refused.
// Guarantees: A1.
func TestMutex_OnACoarseWheel(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	w, err := wheel.New(wheel.WithTickDuration(200 * time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := w.Stop(context.Background())
		require.NoError(t, err)
	})
	rdb := redistest.Shared(t).Client(t)
	c, err := redislock.New(rdb, redislock.WithWheel(w))
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	other := newClient(t, rdb)

	_, err = c.Mutex("short", redislock.WithLease(1999*time.Millisecond)).TryLock(t.Context()) // short: refused
	var invalid *cogwheel.InvalidError
	require.ErrorAs(t, err, &invalid)
	require.Equal(t, "WithLease", invalid.Field)
	require.ErrorContains(t, err, "2s")

	const lease, locks = 3 * time.Second, 60 // short: their ends are awaited
	stalled := stalls(t)
	var pairs []*redislock.Lock
	for range locks {
		name := redistest.Name(t)
		held := mustTryLock(t, c.Mutex(name, redislock.WithLease(lease), redislock.WithoutRenewal()))
		pairs = append(pairs, held)
		// so that leases start at any point of a tick
		require.NoError(t, newWheel(t).Sleep(t.Context(), 7*time.Millisecond))
	}
	delays := make(chan time.Duration, locks)
	for _, held := range pairs {
		go func() {
			next, err := other.Mutex(held.Name()).Lock(within(t, patience))
			if err != nil {
				t.Error(err)
			}
			if isClosed(held.Done()) {
				delays <- 0
			} else {
				began := time.Now()
				<-held.Done()
				delays <- time.Since(began)
			}
			if err := next.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}()
	}
	for range pairs {
		// Only a process that does not run may learn of it later.
		require.LessOrEqual(t, <-delays, stalled(), "the next holder acquired before the loss was announced")
	}
}
