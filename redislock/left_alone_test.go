package redislock_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// Callers who leave while Redis hangs return at once, and what was taken for them is released.
func TestMutex_CallersWhoLeaveDuringAHangHoldNothing(t *testing.T) {
	t.Parallel()
	const callers = 2000
	server := redistest.Start(t)
	c, rdb := newClient(t, server.Client(t)), server.Client(t)
	require.NoError(t, mustLock(t, c.Mutex("first")).Unlock(t.Context()))
	server.Pause()
	var all sync.WaitGroup
	var latest atomic.Int64
	for i := range callers {
		all.Go(func() {
			began := time.Now()
			ctx := within(t, 300*time.Millisecond)
			_, err := c.Mutex(fmt.Sprint("name:", i)).Lock(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			for took := int64(time.Since(began)); ; {
				if old := latest.Load(); took <= old || latest.CompareAndSwap(old, took) {
					return
				}
			}
		})
	}
	all.Wait()
	require.Less(t, time.Duration(latest.Load()), 2500*time.Millisecond, "go-redis waits for 3 s")
	server.Resume()
	poll(t, func() bool { return rdb.DBSize(t.Context()).Val() == 0 })
	require.NoError(t, mustLock(t, c.Mutex("last")).Unlock(t.Context()))
}

// Callers without a goroutine cost none while Redis hangs.
func TestMutex_LockFuncCostsNoGoroutineDuringAHang(t *testing.T) {
	server := redistest.Start(t)
	c := newClient(t, server.Client(t, func(o *redis.Options) { o.MaxRetries = -1 }))
	require.NoError(t, mustLock(t, c.Mutex("first")).Unlock(t.Context()))
	server.Pause()
	before := runtime.NumGoroutine()
	const callers = 5000
	var calls sync.WaitGroup
	calls.Add(callers)
	for i := range callers {
		c.Mutex(fmt.Sprint("name:", i)).LockFunc(within(t, time.Minute), func(l *redislock.Lock, err error) {
			if err == nil {
				_ = l.Unlock(context.Background())
			}
			calls.Done()
		})
		if i%500 == 0 {
			require.NoError(t, newWheel(t).Sleep(t.Context(), 25*time.Millisecond))
		}
	}
	grown := runtime.NumGoroutine() - before
	server.Resume()
	require.Less(t, grown, 50, "callers are %d", callers)
	calls.Wait()
}

// A hook that panics is an entry of the log, whoever waits.
func TestHooks_APanicHarmsNoCaller(t *testing.T) {
	t.Parallel()
	for name, ctx := range map[string]func(t *testing.T) context.Context{
		"a context that may end":    func(t *testing.T) context.Context { return within(t, patience) },
		"a context that cannot end": func(*testing.T) context.Context { return context.Background() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Shared(t).Client(t)
			panics := func(redislock.Event) { panic("a hook panics") }
			c := newClient(t, rdb, redislock.WithHooks(redislock.Hooks{
				Acquired: panics, Contended: panics, Failed: panics, Lost: panics, Released: panics,
			}))
			m := c.Mutex(redistest.Name(t))
			held := mustLock(t, m)
			_, err := m.TryLock(ctx(t))
			require.ErrorIs(t, err, redislock.ErrLocked)
			var waiters sync.WaitGroup
			for range 4 {
				waiters.Go(func() {
					l, err := m.Lock(ctx(t))
					require.NoError(t, err)
					require.NoError(t, l.Unlock(ctx(t)))
				})
			}
			poll(t, func() bool { return c.Stats().Contended > 1 })
			require.NoError(t, held.Unlock(ctx(t)))
			waiters.Wait()
			require.NoError(t, c.Close(within(t, patience)))
		})
	}
}

// panickingHook is a hook of go-redis.
type panickingHook struct{ on atomic.Bool }

func (h *panickingHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *panickingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.on.Load() {
			panic("a hook panics")
		}
		return next(ctx, cmd)
	}
}

func (h *panickingHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if h.on.Load() {
			panic("a hook panics")
		}
		return next(ctx, cmds)
	}
}

// A hook of the redis client that panics fails calls, and leaves the name usable.
func TestMutex_APanicInAHookOfTheRedisClient(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	hook := &panickingHook{}
	rdb.AddHook(hook)
	c := newClient(t, rdb)
	m := c.Mutex(redistest.Name(t))
	for _, ctx := range []context.Context{within(t, patience), context.Background()} {
		hook.on.Store(true)
		_, err := m.Lock(ctx)
		require.ErrorContains(t, err, "a hook panics")
		_, err = m.TryLock(ctx)
		require.ErrorContains(t, err, "a hook panics")
		hook.on.Store(false)
		l := mustLock(t, m)
		hook.on.Store(true)
		require.ErrorIs(t, l.Unlock(ctx), redislock.ErrUnconfirmed)
		hook.on.Store(false)
		require.NoError(t, mustLock(t, m).Unlock(ctx))
	}
	require.NoError(t, c.Close(within(t, patience)))
}
