package redislock_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func TestMutex_LockFunc(t *testing.T) {
	t.Parallel()
	type got struct {
		lock *redislock.Lock
		err  error
	}
	lock := func(ctx context.Context, m *redislock.Mutex) (<-chan got, func()) {
		results := make(chan got, 1)
		return results, m.LockFunc(ctx, func(l *redislock.Lock, err error) { results <- got{l, err} })
	}

	t.Run("calls back with the lock, at once or later", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		m := c.Mutex(name)
		results, cancel := lock(t.Context(), m)
		first := <-results
		require.NoError(t, first.err)
		cancel() // too late
		require.True(t, first.lock.Valid())
		results, _ = lock(t.Context(), m)
		require.NoError(t, first.lock.Unlock(t.Context()))
		second := <-results
		require.NoError(t, second.err)
		requireHeldOnce(t, rdb, name)
		require.NoError(t, second.lock.Unlock(t.Context()))
		requireFree(t, rdb, name)
	})

	t.Run("cancelled before the grant, calls back once without the lock", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		m := c.Mutex(name)
		held := mustLock(t, m)
		results, cancel := lock(t.Context(), m)
		cancel()
		cancel()
		given := <-results
		require.Nil(t, given.lock)
		require.ErrorIs(t, given.err, context.Canceled)
		require.NoError(t, held.Unlock(t.Context()))
		require.NoError(t, c.Close(t.Context()))
		require.Empty(t, results)
		requireFree(t, rdb, name)
	})

	t.Run("calls back with the reason if there is no lock", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		writeHold(t, rdb, name, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		ended, _ := lock(ctx, c.Mutex(name))
		closed, _ := lock(t.Context(), c.Mutex(name))
		invalid, _ := lock(t.Context(), c.Mutex(""))
		cancel()
		require.ErrorIs(t, (<-ended).err, context.Canceled)
		require.ErrorIs(t, (<-invalid).err, cogwheel.ErrInvalid)
		require.NoError(t, c.Close(t.Context()))
		require.ErrorIs(t, (<-closed).err, redislock.ErrClosed)
		require.Panics(t, func() { c.Mutex(name).LockFunc(t.Context(), nil) })
	})
}

// LockFunc returns at once although the cluster hangs and the client does not yet know on which kind of
// channel to listen.
// Guarantees: L20.
func TestLockFunc_ReturnsAtOnceWhileTheClusterHangs(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	name := redistest.Name(t)
	c := newClient(t, cluster.Client(t))
	for _, node := range cluster.Nodes() {
		node.Pause()
		defer node.Resume()
	}
	for what, m := range map[string]lockFuncer{"Mutex": c.Mutex(name), "MultiMutex": c.MultiMutex(
		[]string{name + ":a", name + ":b"},
	)} {
		require.Less(t, redistest.Running(t, func() {
			calls, cancel := startLockFunc(t.Context(), m)
			cancel()
			require.ErrorIs(t, (<-calls).err, context.Canceled, what)
		}), 2*time.Second, what)
	}
}

// callback holds the arguments of a LockFunc callback.
type callback struct {
	lock *redislock.Lock
	err  error
}

func (c callback) mustHold(t testing.TB) *redislock.Lock {
	t.Helper()
	require.NoError(t, c.err)
	require.True(t, c.lock.Valid())
	return c.lock
}

type lockFuncer interface {
	LockFunc(ctx context.Context, f func(*redislock.Lock, error)) (cancel func())
}

// startLockFunc calls LockFunc. The channel has room for a second callback, which must not come.
func startLockFunc(ctx context.Context, m lockFuncer) (calls <-chan callback, cancel func()) {
	results := make(chan callback, 2)
	return results, m.LockFunc(ctx, func(l *redislock.Lock, err error) { results <- callback{l, err} })
}

// replyHook calls a function once, after the n-th script reply from now and before the library sees that
// reply.
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

// busyWait returns after d. It is for pauses shorter than a tick.
func busyWait(d time.Duration) {
	for start := time.Now(); time.Since(start) < d; {
		runtime.Gosched()
	}
}

// requireCancelledCleanly cancels LockFunc around the moment of the grant. It cancels later after a call that
// was too early, and earlier after a call that was granted, so that it adapts to the machine. Each call must
// call back once, with the lock or without it.
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
			require.Less(t, after, 5*time.Second, "a cancelled call still holds the lock")
			require.Nil(t, c.lock)
			require.ErrorIs(t, c.err, context.Canceled)
		}
		require.Empty(t, calls)
	}
	t.Logf("%d acquired, %d gave up", took, gaveUp)
	require.Positive(t, took)
	require.Positive(t, gaveUp)
	calls, _ = startLockFunc(within(t, patience), m)
	mustUnlock(t, (<-calls).mustHold(t))
}
