package redislock_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// fairQueue returns the queue of a FairMutex as Redis holds it.
func fairQueue(t testing.TB, rdb redis.UniversalClient, name string) []string {
	t.Helper()
	ids, err := rdb.LRange(t.Context(), scripts.FairLockKeys(name)[1], 0, -1).Result()
	require.NoError(t, err)
	return ids
}

// requireNoFairKeys checks that no key of a FairMutex remains in Redis.
func requireNoFairKeys(t testing.TB, rdb redis.UniversalClient, name string) {
	t.Helper()
	for _, key := range scripts.FairLockKeys(name) {
		requireFree(t, rdb, key)
	}
}

// startInOrder starts n callers of a FairMutex. Each starts once the queue holds all callers before it.
func startInOrder(t testing.TB, rdb redis.UniversalClient, name string, n int, call func(i int)) {
	t.Helper()
	for i := range n {
		go call(i)
		poll(t, func() bool { return len(fairQueue(t, rdb, name)) == i+1 })
	}
}

// Guarantees: L23.
func TestFairMutex(t *testing.T) {
	t.Parallel()
	onEachDeployment(t, func(t *testing.T, dep *deployment) {
		t.Run("serves callers of several processes in order", func(t *testing.T) {
			t.Parallel()
			servesProcessesInOrder(t, dep)
		})

		t.Run("serves in order when leases end without Unlock", func(t *testing.T) {
			skipIfShort(t)
			t.Parallel()
			c, rdb, name := newClient(t, dep.rdb), dep.rdb, redistest.Name(t)
			const callers, lease = 4, 2 * time.Second // short: their ends are awaited
			first := mustLock(t, c.FairMutex(name))
			m := newClient(t, rdb).FairMutex(name, redislock.WithLease(lease), redislock.WithoutRenewal())
			got, errs := make(chan int, callers), make(chan error, callers)
			startInOrder(t, rdb, name, callers, func(i int) {
				_, err := m.Lock(within(t, patience))
				got <- i
				errs <- err
			})
			mustUnlock(t, first)
			for i := range callers {
				require.Equal(t, i, <-got)
				require.NoError(t, <-errs)
			}
		})

		t.Run("serves two hundred concurrent callers of four processes", func(t *testing.T) {
			t.Parallel()
			const clients, callers = 4, 200
			c, rdb, name := newClient(t, dep.rdb), dep.rdb, redistest.Name(t)
			mutexes := []*redislock.Mutex{c.FairMutex(name)}
			for len(mutexes) < clients {
				mutexes = append(mutexes, newClient(t, rdb).FairMutex(name))
			}
			ctx := within(t, 2*patience)
			served := 0 // guarded by the lock; the race detector checks it
			errs := make(chan error, callers)
			for i := range callers {
				go func() {
					errs <- mutexes[i%clients].Do(ctx, func(context.Context) error {
						served++
						return nil
					})
				}()
			}
			for range callers {
				require.NoError(t, <-errs)
			}
			require.Equal(t, callers, served)
			requireNoFairKeys(t, rdb, name)
		})

		t.Run("renews the holder and keeps a queue position for longer than the lease", func(t *testing.T) {
			skipIfShort(t)
			t.Parallel()
			c, rdb, name := newClient(t, dep.rdb), dep.rdb, redistest.Name(t)
			const lease = safeLease
			m := c.FairMutex(name, redislock.WithLease(lease))
			held := mustLock(t, m)
			next := callAsync(func() (*redislock.Lock, error) { return m.Lock(within(t, patience)) })
			poll(t, func() bool { return len(fairQueue(t, rdb, name)) == 1 })
			awaitRenewals(t, lease, held)
			require.Len(t, fairQueue(t, rdb, name), 1)
			mustUnlock(t, held)
			mustUnlock(t, next.await(t))
		})
	})
}

// Callers of several processes acquire the lock in order of arrival.
func servesProcessesInOrder(t *testing.T, dep *deployment) {
	const clients, callers = 4, 20
	rdb, name := dep.rdb, redistest.Name(t)
	first := mustLock(t, newClient(t, rdb).FairMutex(name))
	var mutexes []*redislock.Mutex
	for range clients {
		mutexes = append(mutexes, newClient(t, rdb).FairMutex(name))
	}
	ctx := within(t, 2*patience)
	var order []int // guarded by the lock
	errs := make(chan error, callers)
	startInOrder(t, rdb, name, callers, func(i int) {
		errs <- mutexes[i%clients].Do(ctx, func(context.Context) error {
			order = append(order, i)
			return nil
		})
	})
	_, err := mutexes[0].TryLock(t.Context())
	require.ErrorIs(t, err, redislock.ErrLocked)
	mustUnlock(t, first)
	for range callers {
		require.NoError(t, <-errs)
	}
	require.True(t, slices.IsSorted(order), "%v", order)
	requireNoFairKeys(t, rdb, name)
}

func TestFairMutex_StateShowsTheQueue(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	held := mustTryLock(t, c.FairMutex(name))
	ctx, cancel := context.WithCancel(t.Context())
	for i, text := range []string{"first", "a: b {7}"} { // of two processes
		newClient(t, rdb).FairMutex(name, redislock.WithMetadata(text)).LockFunc(ctx, func(*redislock.Lock, error) {})
		poll(t, func() bool { return len(fairQueue(t, rdb, name)) == i+1 })
	}
	s, err := c.FairMutex(name).State(t.Context())
	require.NoError(t, err)
	ids := fairQueue(t, rdb, name)
	require.Equal(t, []redislock.Waiter{{ID: ids[0], Metadata: "first"}, {ID: ids[1], Metadata: "a: b {7}"}}, s.Waiting)

	plain := c.Mutex(name + ":plain")
	mustTryLock(t, plain)
	for range 2 {
		newClient(t, rdb).Mutex(plain.Name()).LockFunc(ctx, func(*redislock.Lock, error) {})
	}
	redistest.AwaitLine(t, rdb, scripts.SuffixName(plain.Name(), "waiting"), 2)
	s, err = plain.State(t.Context())
	require.NoError(t, err)
	require.True(t, s.Locked)
	require.Nil(t, s.Waiting, "a Mutex does not say who waits")
	cancel()
	poll(t, func() bool { return len(fairQueue(t, rdb, name)) == 0 })
	mustUnlock(t, held)
}
