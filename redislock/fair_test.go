package redislock_test

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// line is the queue of a fair lock in Redis.
func fairQueue(t testing.TB, rdb redis.UniversalClient, name string) []string {
	t.Helper()
	ids, err := rdb.LRange(t.Context(), scripts.FairLockKeys(name)[1], 0, -1).Result()
	require.NoError(t, err)
	return ids
}

// requireNoLine checks that nothing of a fair lock is left in Redis.
func requireNoFairKeys(t testing.TB, rdb redis.UniversalClient, name string) {
	t.Helper()
	for _, key := range scripts.FairLockKeys(name) {
		requireFree(t, rdb, key)
	}
}

// lineUp starts n callers one after the other, each once the one before stands in line, which had length so far.
func startInOrder(t testing.TB, rdb redis.UniversalClient, name string, n int, call func(i int)) {
	t.Helper()
	for i := range n {
		go call(i)
		poll(t, func() bool { return len(fairQueue(t, rdb, name)) == i+1 })
	}
}

// Callers of several processes get the lock in the order in which they came.
func servesInOrder(t *testing.T, dep *deployment) {
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

func TestFairMutex(t *testing.T) {
	t.Parallel()
	onEachDeployment(t, func(t *testing.T, dep *deployment) {
		t.Run("serves callers of several processes in order", func(t *testing.T) {
			t.Parallel()
			servesInOrder(t, dep)
		})

		t.Run("serves in order although nobody unlocks", func(t *testing.T) {
			t.Parallel()
			c, rdb, name := newClient(t, dep.rdb), dep.rdb, redistest.Name(t)
			const callers, lease = 8, 300 * time.Millisecond
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

		t.Run("two hundred that come at once from four processes are all served", func(t *testing.T) {
			t.Parallel()
			const clients, callers = 4, 200
			c, rdb, name := newClient(t, dep.rdb), dep.rdb, redistest.Name(t)
			mutexes := []*redislock.Mutex{c.FairMutex(name)}
			for len(mutexes) < clients {
				mutexes = append(mutexes, newClient(t, rdb).FairMutex(name))
			}
			ctx := within(t, 2*patience)
			served := 0 // guarded by the lock: the race detector is the checker
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

		t.Run("is renewed while it is held, and its place is kept while it waits for longer than the lease", func(t *testing.T) {
			t.Parallel()
			c, rdb, name := newClient(t, dep.rdb), dep.rdb, redistest.Name(t)
			const lease = 900 * time.Millisecond
			m := c.FairMutex(name, redislock.WithLease(lease))
			held := mustLock(t, m)
			next := callAsync(func() (*redislock.Lock, error) { return m.Lock(within(t, patience)) })
			poll(t, func() bool { return len(fairQueue(t, rdb, name)) == 1 })
			awaitRenewals(t, 2*lease, held)
			require.Len(t, fairQueue(t, rdb, name), 1)
			mustUnlock(t, held)
			mustUnlock(t, next.await(t))
		})
	})
}

// One that gives up while Redis hangs is taken out of the line when it answers.
func TestFairMutex_GivenUpWhileRedisHangs(t *testing.T) {
	t.Parallel()
	server, name := redistest.Start(t), redistest.Name(t)
	rdb := server.Client(t)
	held := mustLock(t, newClient(t, rdb).FairMutex(name, redislock.WithLease(time.Minute)))
	ctx, cancel := context.WithCancel(t.Context())
	gone := callAsync(func() (*redislock.Lock, error) { return newClient(t, server.Client(t)).FairMutex(name).Lock(ctx) })
	poll(t, func() bool { return len(fairQueue(t, rdb, name)) == 1 })
	server.Pause()
	cancel()
	<-gone.done
	require.ErrorIs(t, gone.err, context.Canceled)
	server.Resume()
	poll(t, func() bool { return len(fairQueue(t, rdb, name)) == 0 })
	mustUnlock(t, held)
	requireNoFairKeys(t, rdb, name)
}

// A reply that is lost after the script has executed costs neither the place nor the lock.
func TestFairMutex_LostReply(t *testing.T) {
	t.Parallel()
	onEachDeployment(t, fairLostReply)
}

func fairLostReply(t *testing.T, dep *deployment) {
	lut := newLockUnderTest(t, dep, "fair")
	c, d := lut.newFaultyClient(t)
	plain, name := lut.rdb, lut.name
	lost := d.LoseReply("EVALSHA", 1, redistest.Swallow)
	held := mustLock(t, c.FairMutex(name))
	<-lost
	requireHeldOnce(t, plain, name)

	lost = d.LoseReply("EVALSHA", 1, redistest.Cut)
	next := callAsync(func() (*redislock.Lock, error) { return c.FairMutex(name).Lock(within(t, patience)) })
	<-lost
	poll(t, func() bool { return len(fairQueue(t, plain, name)) > 0 })
	require.Len(t, fairQueue(t, plain, name), 1, "it stands in line once")

	lost = d.LoseReply("EVALSHA", 1, redistest.Swallow)
	mustUnlock(t, held)
	<-lost
	mustUnlock(t, next.await(t))
	poll(t, func() bool { return len(lut.remainingKeys(t)) == 0 })
}

// Whoever is killed while it stands in line is skipped once it was not heard of for 15 seconds, and not before.
func TestFairMutex_SkipsAKilledWaiter(t *testing.T) {
	t.Parallel()
	onEachDeployment(t, skipsAKilledWaiter)
}

func skipsAKilledWaiter(t *testing.T, dep *deployment) {
	rdb, name := dep.rdb, redistest.Name(t)
	held := mustLock(t, newClient(t, rdb).FairMutex(name))
	dead := childCommand(t, roleHold, dep.options.Addrs, name, 0)
	dead.Env = append(dead.Env, childKind+"=fair")
	require.NoError(t, dead.Start())
	poll(t, func() bool { return len(fairQueue(t, rdb, name)) == 1 })
	next := callAsync(func() (*redislock.Lock, error) { return newClient(t, rdb).FairMutex(name).Lock(within(t, 2*patience)) })
	poll(t, func() bool { return len(fairQueue(t, rdb, name)) == 2 })
	require.NoError(t, dead.Process.Kill())
	require.Error(t, dead.Wait())
	// Spare the test most of the 15 seconds: the waiter was last heard of 12 s earlier than it was.
	alive, id := scripts.FairLockKeys(name)[3], fairQueue(t, rdb, name)[0]
	until, err := rdb.ZIncrBy(t.Context(), alive, -12_000, id).Result()
	require.NoError(t, err)
	killed := time.Now()
	left := time.Duration(until-float64(serverTime(t, dep, name).UnixMilli())) * time.Millisecond
	require.Less(t, left, 3*time.Second+100*time.Millisecond)
	mustUnlock(t, held)
	l := next.await(t)
	took := next.at.Sub(killed)
	require.GreaterOrEqual(t, took, left-10*time.Millisecond, "it may still be alive")
	require.Less(t, took, left+8*time.Second)
	t.Logf("%v were left; skipped after %v", left, took)
	mustUnlock(t, l)
	requireNoFairKeys(t, rdb, name)
}

// nowAt is the clock of the server that has the key.
func serverTime(t *testing.T, dep *deployment, key string) time.Time {
	t.Helper()
	ms, err := dep.rdb.Eval(t.Context(), "return redis.call('TIME')", []string{key}).Slice()
	require.NoError(t, err)
	s, err := strconv.ParseInt(ms[0].(string), 10, 64)
	require.NoError(t, err)
	us, err := strconv.ParseInt(ms[1].(string), 10, 64)
	require.NoError(t, err)
	return time.Unix(s, us*1000)
}
