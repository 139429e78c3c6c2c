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
