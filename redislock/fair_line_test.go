package redislock_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// Waiters whose leases are shorter than an outage give up during it. Their places must not hold up a lock that is free.
func TestFairMutex_AnOutageLongerThanTheLeaseLeavesNoPlace(t *testing.T) {
	t.Parallel()
	for _, lease := range []time.Duration{20 * time.Millisecond, 300 * time.Millisecond} {
		t.Run(lease.String(), func(t *testing.T) {
			t.Parallel()
			c, dialer, rdb := newFaultyClient(t)
			name := redistest.Name(t)
			holder := mustLock(t, newClient(t, rdb).Mutex(name, redislock.WithLease(time.Minute)))
			m := c.FairMutex(name, redislock.WithLease(lease))
			var waiting []*asyncCall
			ctx, giveUp := context.WithCancel(t.Context())
			for range 5 {
				waiting = append(waiting, callAsync(func() (*redislock.Lock, error) { return m.Lock(ctx) }))
			}
			poll(t, func() bool { return len(fairQueue(t, rdb, name)) == 5 })
			dialer.Set(redistest.BlackholeUp)
			giveUp()
			for _, w := range waiting {
				<-w.done
				require.ErrorIs(t, w.err, context.Canceled)
			}
			require.NoError(t, newWheel(t).Sleep(t.Context(), 2*time.Second))
			dialer.Set(redistest.Pass)
			dialer.Reset()
			began := time.Now()
			mustUnlock(t, holder)
			mustUnlock(t, mustLock(t, newClient(t, rdb).FairMutex(name)))
			require.Less(t, time.Since(began), 8*time.Second, "a place alone would count for 15")
			poll(t, func() bool { return len(fairQueue(t, rdb, name)) == 0 })
		})
	}
}

// Fifty callers that give up after 10 ms, and come again, for as long as another holds the lock.
func TestFairMutex_CallersThatGiveUpSoonCostLittle(t *testing.T) { // not parallel: it counts goroutines
	server := redistest.Start(t)
	rdb := server.Client(t)
	name := redistest.Name(t)
	c := newClient(t, server.Client(t))
	holder := mustLock(t, newClient(t, rdb).Mutex(name, redislock.WithLease(time.Minute)))
	m := c.FairMutex(name)
	const callers, during = 50, 2 * time.Second
	before, most := runtime.NumGoroutine(), 0
	end := time.Now().Add(during)
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for time.Now().Before(end) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				if _, err := m.Lock(ctx); err == nil {
					t.Error("locked")
				}
				cancel()
			}
		})
	}
	w := newWheel(t)
	for time.Now().Before(end) {
		require.NoError(t, w.Sleep(t.Context(), 50*time.Millisecond))
		most = max(most, runtime.NumGoroutine()-before)
	}
	all.Wait()
	require.Less(t, most, 20*callers, "goroutines")
	t.Logf("%d goroutines at most", most)
	gone := time.Now()
	poll(t, func() bool { return len(fairQueue(t, rdb, name)) == 0 })
	require.Less(t, time.Since(gone), 3*time.Second)
	for _, key := range scripts.FairLockKeys(name)[1:] {
		require.LessOrEqual(t, rdb.PTTL(t.Context(), key).Val(), 15*time.Second)
	}
	mustUnlock(t, holder)
}

// Leases about as short as the wheel allows run out under way, and are asked for anew. When all have gone nobody stands in line.
func TestFairMutex_ShortLeasesLeaveNoPlace(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	name := redistest.Name(t)
	end := time.Now().Add(3 * time.Second)
	var all sync.WaitGroup
	for i := range 12 {
		c := newClient(t, server.Client(t))
		m := c.FairMutex(name, redislock.WithLease(time.Duration(10+2*i)*time.Millisecond))
		all.Go(func() {
			for time.Now().Before(end) {
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				if l, err := m.Lock(ctx); err == nil {
					_ = l.Unlock(t.Context())
				}
				cancel()
			}
		})
	}
	all.Wait()
	gone := time.Now()
	poll(t, func() bool { return rdb.DBSize(t.Context()).Val() == 0 })
	require.Less(t, time.Since(gone), 4*time.Second)
}
