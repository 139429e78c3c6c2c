package redislock_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// These tests count goroutines of the whole process, so they do not run beside others.

// REDISLOCK_TEST_LOCKS=100000 makes it the fleet that the package is for.
func TestLock_CostsNoGoroutineWhileHeld(t *testing.T) {
	lease := 2 * time.Second
	locks, full := redistest.Scale(t, "REDISLOCK_TEST_LOCKS", 1000)
	if full {
		lease = redislock.DefaultLease
	}
	server := redistest.Start(t)
	rdb := server.Client(t)
	c := newClient(t, rdb)
	name := redistest.Name(t)
	take := func(i int) *redislock.Lock {
		l, err := c.Mutex(fmt.Sprintf("%s:%d", name, i), redislock.WithLease(lease)).Lock(t.Context())
		require.NoError(t, err)
		l.Context(t.Context())
		return l
	}
	held := []*redislock.Lock{take(0)}
	first := held[0].Deadline()
	poll(t, func() bool { return held[0].Deadline().After(first) }) // everything that renewals need has started
	one := runtime.NumGoroutine()

	for i := 1; i < locks; i++ {
		held = append(held, take(i))
	}
	most, w := 0, newWheel(t)
	var profile strings.Builder // at most
	for start := time.Now(); time.Since(start) < 3*lease; {
		if n := runtime.NumGoroutine(); n > most {
			most = n
			profile.Reset()
			require.NoError(t, pprof.Lookup("goroutine").WriteTo(&profile, 1))
		}
		require.NoError(t, w.Sleep(t.Context(), 5*time.Millisecond))
	}
	t.Logf("goroutines: %d with 1 lock held, at most %d with %d held and renewed for 3 leases of %v", one, most, locks, lease)
	require.LessOrEqual(t, most, one+16, "a few calls in flight, nothing per lock: %s", &profile)
	for _, l := range held {
		require.NoError(t, l.Err())
		require.NoError(t, l.Unlock(t.Context()))
	}
	size, err := rdb.DBSize(t.Context()).Result()
	require.NoError(t, err)
	require.Zero(t, size)
}

// REDISLOCK_TEST_LOCKS=100000 as above.
func TestLock_ManyAreToldTogetherThatRedisHangs(t *testing.T) {
	lease := 4 * time.Second
	locks, full := redistest.Scale(t, "REDISLOCK_TEST_LOCKS", 1000)
	if full {
		lease = redislock.DefaultLease
	}
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
	var told time.Duration // after the deadline, at most
	for _, l := range held {
		<-l.Done()
		require.ErrorIs(t, l.Err(), redislock.ErrLost)
		told = max(told, time.Since(l.Deadline()))
	}
	t.Logf("%d locks lost, the last told %v after its deadline", locks, told)
	if full { // a few are told too soon to tell a difference, and not alone on the machine
		require.Less(t, told, lease/100+50*time.Millisecond, "after Redis may have given it away")
	}
	server.Resume()
	poll(t, func() bool { return rdb.DBSize(t.Context()).Val() == 0 })
}

func TestMutex_CostsNoGoroutinePerWaiterBeyondTheCallers(t *testing.T) {
	const waiters = 100
	server := redistest.Start(t)
	rdb := server.Client(t)
	c := newClient(t, rdb)
	name := redistest.Name(t)
	held := mustLock(t, c.Mutex(name))
	results := make(chan error, waiters)
	m := c.Mutex(name)
	ctx := within(t, 3*time.Second)
	before := runtime.NumGoroutine()
	for range waiters {
		go func() {
			_, err := m.Lock(ctx)
			results <- err
		}()
	}
	poll(t, func() bool { return subscribed(t, rdb, name) })
	fewest := before + 1000 // the looks that are under way come and go: what stays is the fewest
	for w := newWheel(t); w.Sleep(ctx, 5*time.Millisecond) == nil; {
		fewest = min(fewest, runtime.NumGoroutine())
	}
	for range waiters {
		require.ErrorIs(t, <-results, redislock.ErrLocked)
	}
	t.Logf("goroutines: %d before, %d with %d waiters", before, fewest, waiters)
	require.LessOrEqual(t, fewest, before+waiters+12)
	require.NoError(t, held.Unlock(t.Context()))
}

func subscribed(t *testing.T, rdb *redis.Client, name string) bool {
	subs, err := rdb.PubSubChannels(t.Context(), "*"+name+"*").Result()
	require.NoError(t, err)
	return len(subs) == 1
}

func TestLock_IsKeptForManyLeases(t *testing.T) {
	t.Parallel()
	const locks, lease, leases = 200, time.Second, 5
	server := redistest.Start(t)
	rdb := server.Client(t)
	c := newClient(t, rdb)
	name := redistest.Name(t)
	var held []*redislock.Lock
	holders := map[string]string{}
	for i := range locks {
		name := fmt.Sprintf("%s:%d", name, i)
		held = append(held, mustLock(t, c.Mutex(name, redislock.WithLease(lease))))
		holders[name] = requireHeldOnce(t, rdb, name)
	}
	began := time.Now()
	require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
	require.NoError(t, newWheel(t).Sleep(t.Context(), leases*lease))
	for _, l := range held {
		require.NoError(t, l.Err())
		require.Equal(t, holders[l.Name()], requireHeldOnce(t, rdb, l.Name()), "held by the same acquisition throughout")
	}
	renewals, calls := serverCalls(t, rdb, "pexpire"), serverCalls(t, rdb, "evalsha")
	took := time.Since(began)
	t.Logf("%d renewals in %d calls and %v", renewals, calls, took)
	require.GreaterOrEqual(t, renewals, locks*leases*2)
	require.Less(t, float64(renewals), locks*4*took.Seconds()/lease.Seconds(), "about three a lease, and retries on a busy machine")
	require.Less(t, calls, renewals/2, "what is due together travels together")
	for _, l := range held {
		require.NoError(t, l.Unlock(t.Context()))
	}
}

func TestRedislock_SendsNoAbsoluteTimes(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client(t)
	conn, err := net.Dial("tcp", server.Addr())
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("MONITOR\r\n"))
	require.NoError(t, err)
	monitor := bufio.NewScanner(conn)
	require.True(t, monitor.Scan(), "+OK")
	c := newClient(t, rdb)
	name := redistest.Name(t)
	l := mustLock(t, c.Mutex(name, redislock.WithLease(time.Second)))
	first := l.Deadline()
	poll(t, func() bool { return l.Deadline().After(first) })
	require.NoError(t, l.Unlock(t.Context()))
	require.NoError(t, rdb.Echo(t.Context(), "the end").Err())
	epoch := fmt.Sprint(time.Now().Unix())[:5]
	seen := 0
	for monitor.Scan() {
		line := monitor.Text()
		if strings.Contains(line, "the end") {
			break
		}
		_, words, _ := strings.Cut(line, "] ")
		if strings.Contains(words, name) {
			seen++
		}
		require.NotContains(t, words, `"`+epoch, "a wall-clock time of the client went to Redis: %s", line)
		require.NotContains(t, strings.ToUpper(words), "EXPIREAT")
	}
	require.Greater(t, seen, 3)
}
