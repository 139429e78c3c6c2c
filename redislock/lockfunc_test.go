package redislock_test

import (
	"context"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// callback is what a LockFunc has called back with.
type callback struct {
	lock *redislock.Lock
	err  error
}

type lockFuncer interface {
	LockFunc(ctx context.Context, f func(*redislock.Lock, error)) (cancel func())
}

// lockFunc calls LockFunc. The channel has room for a second call, which must not come.
func startLockFunc(ctx context.Context, m lockFuncer) (calls <-chan callback, cancel func()) {
	results := make(chan callback, 2)
	return results, m.LockFunc(ctx, func(l *redislock.Lock, err error) { results <- callback{l, err} })
}

func (c callback) mustHold(t testing.TB) *redislock.Lock {
	t.Helper()
	require.NoError(t, c.err)
	require.True(t, c.lock.Valid())
	return c.lock
}

// afterReply calls f once when the n-th script from now on was answered, before the library gets to see the answer.
type replyHook struct {
	mu sync.Mutex
	n  int
	f  func()
}

func (a *replyHook) runAfterReply(n int, f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n, a.f = n, f
}

func (a *replyHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a *replyHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (a *replyHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == "evalsha" && err == nil {
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.n--; a.n == 0 {
				a.f()
			}
		}
		return err
	}
}

// spin keeps the processor until d is over: a pause shorter than a tick.
func busyWait(d time.Duration) {
	for start := time.Now(); time.Since(start) < d; {
		runtime.Gosched()
	}
}

// cancelledAtAnyInstant calls LockFunc and cancels it, a little later if the last time the lock was not there yet, a little earlier if it was:
// around the instant of the grant, however busy the machine is. Each call calls back once, and what it has got is the lock or nothing.
func requireCancelledCleanly(t *testing.T, m lockFuncer, rounds int) {
	t.Helper()
	calls, _ := startLockFunc(within(t, patience), m)
	mustUnlock(t, (<-calls).mustHold(t))
	took, gaveUp, after := 0, 0, time.Millisecond
	for range rounds {
		calls, cancel := startLockFunc(t.Context(), m)
		busyWait(after)
		cancel()
		c := <-calls
		if c.err == nil {
			took++
			after = after * 3 / 4
			mustUnlock(t, c.mustHold(t))
		} else {
			gaveUp++
			after = after * 4 / 3
			require.Less(t, after, 5*time.Second, "what was given up is held")
			require.Nil(t, c.lock)
			require.ErrorIs(t, c.err, context.Canceled)
		}
		require.Empty(t, calls)
	}
	t.Logf("%d took the lock, %d gave up", took, gaveUp)
	require.Positive(t, took)
	require.Positive(t, gaveUp)
	calls, _ = startLockFunc(within(t, patience), m)
	mustUnlock(t, (<-calls).mustHold(t))
}

// fewest is the least number of goroutines that are seen within a second: looks that are under way come and go, what stays is the fewest.
func fewestGoroutines(t *testing.T) int {
	t.Helper()
	n := runtime.NumGoroutine()
	ctx := within(t, time.Second)
	for w := newWheel(t); w.Sleep(ctx, 5*time.Millisecond) == nil; {
		n = min(n, runtime.NumGoroutine())
	}
	return n
}

// It counts goroutines of the whole process, so it does not run beside others.
func TestLockFunc_CostsNoGoroutineWhileItWaits(t *testing.T) {
	const waiters, few = 200, 20
	servers := startServers(t, 3)
	rdb := servers[0].Client(t)
	c, name := newClient(t, rdb), redistest.Name(t)
	last := name + ":z"
	quorum := servers.newQuorum(t).Mutex(name + ":q")
	for what, open := range map[string]func(i int) lockFuncer{
		// Each has a name of its own, which it gets, and then waits for the one that is held.
		"a MultiMutex": func(i int) lockFuncer { return c.MultiMutex([]string{name + ":" + strconv.Itoa(i), last}) },
		"a Quorum":     func(int) lockFuncer { return quorum },
	} {
		t.Run(what, func(t *testing.T) {
			held := []*redislock.Lock{mustLock(t, newClient(t, rdb).Mutex(last)), mustLock(t, servers.newQuorum(t).Mutex(name+":q"))}
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

	t.Run("unlike Lock, which keeps its caller (control)", func(t *testing.T) {
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

// A cluster that has never answered does not keep the caller, though the client does not know yet on which channels it has to listen.
func TestLockFunc_ReturnsAtOnceWhileTheClusterHangs(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	name := redistest.Name(t)
	c := newClient(t, cluster.Client(t))
	for _, node := range cluster.Nodes() {
		node.Pause()
		defer node.Resume()
	}
	for what, m := range map[string]lockFuncer{"Mutex": c.Mutex(name), "MultiMutex": c.MultiMutex([]string{name + ":a", name + ":b"})} {
		start := time.Now()
		calls, cancel := startLockFunc(t.Context(), m)
		require.Less(t, time.Since(start), time.Second, what)
		cancel()
		require.ErrorIs(t, (<-calls).err, context.Canceled, what)
		require.Less(t, time.Since(start), 2*time.Second, what)
	}
}
