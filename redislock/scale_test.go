package redislock_test

import (
	"context"
	"fmt"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/testsize"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// Most of these tests count the goroutines of the process, so they are not parallel.

// Guarantees: L19.
func TestScale_HeldLocksCostNoGoroutine(t *testing.T) {
	skipIfShort(t)
	locks, lease := testsize.WhenAlone(1000, 100_000), testsize.WhenAlone(safeLease, redislock.DefaultLease)
	server := redistest.Start(t)
	rdb := server.Client(t)
	c := newClient(t, rdb)
	name := redistest.Name(t)
	acquire := func(i int) *redislock.Lock {
		l, err := c.Mutex(fmt.Sprintf("%s:%d", name, i), redislock.WithLease(lease)).Lock(t.Context())
		require.NoError(t, err)
		l.Context(t.Context())
		return l
	}
	held := []*redislock.Lock{acquire(0)}
	first := held[0].Deadline()
	poll(t, func() bool { return held[0].Deadline().After(first) }) // all goroutines of renewals run
	one := runtime.NumGoroutine()

	for i := 1; i < locks; i++ {
		held = append(held, acquire(i))
	}
	last, acquired := held[locks-1], held[locks-1].Deadline()
	most, w := 0, newWheel(t)
	var profile strings.Builder                           // at the highest count
	for last.Deadline().Before(acquired.Add(lease / 2)) { // until each lock was renewed twice
		require.NoError(t, last.Err())
		if n := runtime.NumGoroutine(); n > most {
			most = n
			profile.Reset()
			require.NoError(t, pprof.Lookup("goroutine").WriteTo(&profile, 1))
		}
		require.NoError(t, w.Sleep(t.Context(), 5*time.Millisecond))
	}
	t.Logf("goroutines: %d with 1 lock held, at most %d with %d held and renewed", one, most, locks)
	// The pool of the wheel grows where the machine stands still, as callbacks that do not run look blocked.
	require.LessOrEqual(t, most, one+100, "a few calls in flight, none per lock: %s", &profile)
	for _, l := range held {
		require.NoError(t, l.Err())
		require.NoError(t, l.Unlock(t.Context()))
	}
	size, err := rdb.DBSize(t.Context()).Result()
	require.NoError(t, err)
	require.Zero(t, size)
}

// Guarantees: L2.
func TestScale_ManyHoldersLearnTogetherThatRedisHangs(t *testing.T) {
	skipIfShort(t)
	locks := testsize.WhenAlone(1000, 100_000)
	lease := testsize.WhenAlone(4*time.Second, redislock.DefaultLease) // their ends are awaited
	server := redistest.Start(t)
	rdb := server.Client(t)
	c := newClient(t, rdb)
	name := redistest.Name(t)
	held := make([]*redislock.Lock, locks)
	redistest.Each(t, locks, func(i int) (err error) {
		held[i], err = c.Mutex(fmt.Sprintf("%s:%d", name, i), redislock.WithLease(lease)).Lock(context.Background())
		return err
	})
	server.Pause()
	var latest time.Duration // after the deadline, at most
	for _, l := range held {
		<-l.Done()
		require.ErrorIs(t, l.Err(), redislock.ErrLost)
		latest = max(latest, time.Since(l.Deadline()))
	}
	t.Logf("%d locks lost, the last announced %v after its deadline", locks, latest)
	if testsize.Alone() {
		require.Less(t, latest, lease/100+50*time.Millisecond, "after Redis may have granted it to another")
	}
	server.Resume()
	poll(t, func() bool { return rdb.DBSize(t.Context()).Val() == 0 })
}

// Guarantees: L19.
func TestScale_WaitersCostNoGoroutineBeyondTheirCallers(t *testing.T) {
	skipIfShort(t)
	const waiters = 100
	server := redistest.Start(t)
	rdb := server.Client(t)
	c := newClient(t, rdb)
	name := redistest.Name(t)
	held := mustLock(t, c.Mutex(name))
	results := make(chan error, waiters)
	m := c.Mutex(name)
	ctx, giveUp := context.WithCancel(within(t, patience))
	before := runtime.NumGoroutine()
	for range waiters {
		go func() {
			_, err := m.Lock(ctx)
			results <- err
		}()
	}
	poll(t, func() bool { return isSubscribed(t, rdb, name) })
	fewest := fewestGoroutines(t)
	require.Empty(t, results)
	giveUp()
	for range waiters {
		require.ErrorIs(t, <-results, redislock.ErrLocked)
	}
	t.Logf("goroutines: %d before, %d with %d waiters", before, fewest, waiters)
	require.LessOrEqual(t, fewest, before+waiters+waiters/2)
	require.NoError(t, held.Unlock(t.Context()))
}

// Each caller asks for a lock of its own, under a context that may end. Redis hangs.
// Guarantees: L19.
func TestScale_CallsInFlightCostNoGoroutineBeyondTheirCallers(t *testing.T) { // not parallel: it counts goroutines
	skipIfShort(t)
	const callers = 200
	server := redistest.Start(t)
	rdb := server.Client(t, func(o *redis.Options) { o.ReadTimeout = patience })
	c := newClient(t, rdb)
	mustUnlock(t, mustLock(t, c.Mutex("first")))
	ctx, giveUp := context.WithCancel(within(t, patience))
	results := make(chan error, callers)
	server.Pause()
	before := runtime.NumGoroutine()
	for i := range callers {
		m := c.Mutex(fmt.Sprint("lock:", i))
		go func() {
			_, err := m.Lock(ctx)
			results <- err
		}()
	}
	poll(t, func() bool { return len(slices.Collect(c.Waits())) == callers })
	fewest := fewestGoroutines(t)
	require.Empty(t, results)
	giveUp()
	for range callers {
		require.ErrorIs(t, <-results, context.Canceled)
	}
	t.Logf("goroutines: %d before, %d with %d callers", before, fewest, callers)
	require.LessOrEqual(t, fewest, before+callers+callers/4)
	server.Resume()
	poll(t, func() bool { return rdb.DBSize(t.Context()).Val() == 0 })
}

func isSubscribed(t *testing.T, rdb *redis.Client, name string) bool {
	subs, err := rdb.PubSubChannels(t.Context(), "*"+name+"*").Result()
	require.NoError(t, err)
	return len(subs) > 0
}

// It counts the goroutines of the process, so it is not parallel.
// Guarantees: L19.
func TestScale_LockFuncCostsNoGoroutineWhileItWaits(t *testing.T) {
	skipIfShort(t)
	const waiters, few = 200, 20
	servers := startServers(t, 3)
	rdb := servers[0].Client(t)
	c, name := newClient(t, rdb), redistest.Name(t)
	last := name + ":z"
	quorum := servers.newQuorum(t).Mutex(name + ":q")
	for what, open := range map[string]func(i int) lockFuncer{
		// Each acquires a name of its own and then waits for the held name.
		"a MultiMutex": func(i int) lockFuncer {
			return c.MultiMutex([]string{name + ":" + strconv.Itoa(i), last})
		},
		"a Quorum": func(int) lockFuncer { return quorum },
	} {
		t.Run(what, func(t *testing.T) {
			holder, holders := newClient(t, rdb), servers.newQuorum(t)
			held := []*redislock.Lock{mustLock(t, holder.Mutex(last)), mustLock(t, holders.Mutex(name+":q"))}
			poll(t, func() bool { return isSubscribed(t, rdb, clientChannel(t, holder)) })
			for _, rdb := range servers.clients(t) {
				poll(t, func() bool { return isSubscribed(t, rdb.(*redis.Client), clientChannel(t, holders)) })
			}
			before := fewestGoroutines(t)
			results := make(chan callback, waiters)
			for i := range waiters {
				open(i).LockFunc(t.Context(), func(l *redislock.Lock, err error) { results <- callback{l, err} })
			}
			n := fewestGoroutines(t)
			require.Empty(t, results)
			t.Logf("goroutines: %d before, %d with %d waiters", before, n, waiters)
			require.LessOrEqual(t, n, before+few)
			mustUnlock(t, held...)
			for range waiters {
				mustUnlock(t, (<-results).mustHold(t))
			}
		})
	}

	t.Run("control: Lock blocks a goroutine per caller", func(t *testing.T) {
		held := mustLock(t, servers.newQuorum(t).Mutex(name+":q"))
		before := fewestGoroutines(t)
		results := make(chan error, waiters)
		ctx := within(t, patience)
		for range waiters {
			go func() { results <- quorum.Do(ctx, func(context.Context) error { return nil }) }()
		}
		require.Greater(t, fewestGoroutines(t), before+waiters-few)
		mustUnlock(t, held)
		for range waiters {
			require.NoError(t, <-results)
		}
	})
}

// A majority hangs, so each call waits for the end of its round. It counts the goroutines of the process, so it is
// not parallel.
// Guarantees: L19.
func TestScale_LockFuncsOfAQuorumCostNoGoroutineWhileAMajorityHangs(t *testing.T) {
	skipIfShort(t)
	const names, few = 300, 100 // few: the batches in flight to two servers that hang
	servers, name := startServers(t, 3), redistest.Name(t)
	q := servers.newQuorumOfFailingServers(t)
	mustUnlock(t, mustLock(t, q.Mutex(name)))
	servers[0].Pause()
	servers[2].Pause()
	defer servers[0].Resume()
	defer servers[2].Resume()
	before := runtime.NumGoroutine()
	results := make(chan error, names)
	for i := range names {
		q.Mutex(fmt.Sprint(name, i)).LockFunc(t.Context(), func(_ *redislock.Lock, err error) { results <- err })
	}
	fewest := fewestGoroutines(t)
	t.Logf("goroutines: %d before, %d with %d names", before, fewest, names)
	require.LessOrEqual(t, fewest, before+few)
	for range names {
		require.ErrorIs(t, <-results, redislock.ErrNoQuorum)
	}
}

// fewestGoroutines returns the fewest goroutines of two hundred looks, which take a second. Attempts in flight
// come and go; the minimum excludes them.
func fewestGoroutines(t *testing.T) int {
	t.Helper()
	n, w := runtime.NumGoroutine(), newWheel(t)
	for range 200 {
		require.NoError(t, w.Sleep(t.Context(), 5*time.Millisecond))
		n = min(n, runtime.NumGoroutine())
	}
	return n
}

// Fifty callers give up after 10 ms and call again while another holds the lock.
// Guarantees: L25.
func TestScale_FairMutexWaitersThatGiveUpSoonCostLittle(t *testing.T) { // not parallel: it counts goroutines
	skipIfShort(t)
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
	left := time.Now()
	poll(t, func() bool { return len(fairQueue(t, rdb, name)) == 0 })
	require.Less(t, time.Since(left), 10*time.Second, "entries left behind would stay for 15 s")
	for _, key := range scripts.FairLockKeys(name)[1:] {
		require.LessOrEqual(t, rdb.PTTL(t.Context(), key).Val(), 15*time.Second)
	}
	mustUnlock(t, holder)
}

// Deadlines show that each lock is renewed. The server counts the renewals and the calls that carry them.
// Guarantees: L13.
func TestScale_LocksAreRenewedForManyLeases(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	const locks, leases = 200, 2
	server := redistest.Start(t)
	rdb := server.Client(t)
	c := newClient(t, rdb)
	name := redistest.Name(t)
	var held []*redislock.Lock
	holders := map[string]string{}
	for i := range locks {
		name := fmt.Sprintf("%s:%d", name, i)
		held = append(held, mustLock(t, c.Mutex(name, redislock.WithLease(safeLease))))
		holders[name] = requireHeldOnce(t, rdb, name)
	}
	require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
	began := time.Now()
	awaitRenewals(t, leases*safeLease, held...)
	for _, l := range held {
		require.NoError(t, l.Err())
		require.Equal(
			t, holders[l.Name()], requireHeldOnce(t, rdb, l.Name()), "the hold is that of the same acquisition",
		)
	}
	renewals, calls := serverCalls(t, rdb, "pexpire"), serverCalls(t, rdb, "evalsha")
	passed := float64(time.Since(began)) / float64(safeLease)
	t.Logf("%d renewals in %d calls and %.1f leases", renewals, calls, passed)
	require.GreaterOrEqual(t, renewals, leases*locks)
	require.Less(t, float64(renewals), 6*locks*(passed+1), "three per lease, and as many retries")
	require.Less(t, calls, renewals/2, "renewals that are due together are sent together")
	for _, l := range held {
		require.NoError(t, l.Unlock(t.Context()))
	}
}

// Many callers of several clients use locks of all kinds. Each client has one connection per node.
func TestScale_ManyCallersOnOneConnection(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	onEachDeployment(t, func(t *testing.T, dep *deployment) {
		const processes, callers, times, names = 3, 4, 5, 2
		var locks []*lockUnderTest
		for _, kind := range exclusiveKinds {
			for range names {
				locks = append(locks, newLockUnderTest(t, dep, kind))
			}
		}
		counts := make([]int, len(locks)) // each guarded by its lock; the race detector checks it
		var running sync.WaitGroup
		for range processes {
			c := newClient(t, dep.connect(t, onlyOneConnection))
			for i, lut := range locks {
				for range callers {
					running.Go(func() {
						for range times {
							if err := lut.mutex(c).Do(within(t, patience), func(context.Context) error {
								counts[i]++
								return nil
							}); err != nil {
								t.Error(err)
							}
						}
					})
				}
			}
		}
		running.Wait()
		for i, lut := range locks {
			require.Equal(t, processes*callers*times, counts[i], lut.kind)
			lut.requireNoKeys(t)
		}
		for _, lut := range locks { // idle subscriptions end after a few seconds
			poll(t, func() bool { return len(lut.channelsWith(t, lut.name)) == 0 })
		}
	})
}

// Close sends no releases for locks whose leases have ended, however many there are and however slowly Redis
// fails.
// Guarantees: L21.
func TestScale_CloseEndsWithinALeaseWhileRedisHangs(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	const lease, locks = 3 * time.Second, 5000 // short: their ends are awaited
	server, name := redistest.Start(t), redistest.Name(t)
	c, err := redislock.New(server.Client(t, func(o *redis.Options) {
		o.ReadTimeout = 300 * time.Millisecond
	}), redislock.WithWheel(newWheel(t)))
	require.NoError(t, err)
	for i := range locks {
		_, err := c.Mutex(fmt.Sprintf("%s:%d", name, i), redislock.WithLease(lease)).TryLock(t.Context())
		require.NoError(t, err)
	}
	server.Pause()
	began := time.Now()
	require.Error(t, c.Close(context.Background()))
	// Three failing calls of 300 ms for each hundred locks, with pauses, would take more than a minute.
	require.Less(t, time.Since(began), lease+10*time.Second)
	server.Resume()
}
