package redislock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// waiter is a lock client of its own, of which is known how often it has looked.
type waiter struct {
	rdb   *redis.Client
	mutex *redislock.Mutex
	count *counter
}

func newWaiter(t *testing.T, server *redistest.Server, name string) *waiter {
	t.Helper()
	rdb := server.Client(t)
	c, count := counted(t, rdb)
	return &waiter{rdb, c.Mutex(name), count}
}

// waiting is a Lock call under way.
type waiting struct {
	lock *redislock.Lock
	err  error
	took time.Duration // since release returned
	done chan struct{}
}

// wait starts a Lock call and returns once it has looked twice, before and after its subscription, and sleeps.
func (w *waiter) wait(t *testing.T, ctx context.Context) *waiting {
	t.Helper()
	call := &waiting{done: make(chan struct{})}
	go func() {
		defer close(call.done)
		call.lock, call.err = w.mutex.Lock(ctx)
	}()
	awaitWaiters(t, w.rdb, w.mutex.Name())
	poll(t, func() bool { return w.count.looks() >= 2 })
	return call
}

// after measures how long the call goes on after release.
func (w *waiting) after(release func()) *waiting {
	release()
	start := time.Now()
	<-w.done
	w.took = time.Since(start)
	return w
}

func TestMutex_Lock_WaitsUntil(t *testing.T) {
	t.Parallel()
	const (
		woken   = 800 * time.Millisecond // sooner than any poll
		minPoll = 500 * time.Millisecond // half the shortest poll interval
		maxPoll = 6 * time.Second        // the longest, and room for a busy machine
	)
	start := func(t *testing.T) (*redis.Client, *waiter, string) {
		t.Parallel()
		server, name := redistest.Shared(t), redistest.Name(t)
		return server.Client(t), newWaiter(t, server, name), name
	}

	t.Run("the holder unlocks", func(t *testing.T) {
		rdb, waiter, name := start(t)
		held := mustLock(t, newClient(t, rdb).Mutex(name))
		w := waiter.wait(t, within(t, patience)).after(func() {
			require.NoError(t, held.Unlock(t.Context()))
		})
		require.NoError(t, w.err)
		require.Less(t, w.took, woken)
		require.NoError(t, w.lock.Unlock(t.Context()))
	})

	t.Run("a client of another language unlocks", func(t *testing.T) {
		rdb, waiter, name := start(t)
		holdRaw(t, rdb, name, time.Minute)
		w := waiter.wait(t, within(t, patience)).after(func() {
			require.NoError(t, rdb.Del(t.Context(), name).Err())
			require.NoError(t, rdb.Publish(t.Context(), scripts.LockChannel(name), "0").Err())
		})
		require.NoError(t, w.err)
		require.Less(t, w.took, woken)
		require.NoError(t, w.lock.Unlock(t.Context()))
	})

	t.Run("the poll finds the lock free although the message was lost", func(t *testing.T) {
		rdb, waiter, name := start(t)
		holdRaw(t, rdb, name, time.Minute)
		w := waiter.wait(t, within(t, patience)).after(func() {
			require.NoError(t, rdb.Del(t.Context(), name).Err()) // and nobody publishes
		})
		require.NoError(t, w.err)
		require.Greater(t, w.took, minPoll, "nothing woke it")
		require.Less(t, w.took, maxPoll)
		require.NoError(t, w.lock.Unlock(t.Context()))
	})

	t.Run("a key without expiry is removed", func(t *testing.T) {
		rdb, waiter, name := start(t)
		holdRaw(t, rdb, name, 0)
		w := waiter.wait(t, within(t, patience)).after(func() {
			require.NoError(t, rdb.Del(t.Context(), name).Err())
		})
		require.NoError(t, w.err)
		require.Greater(t, w.took, minPoll)
		require.Less(t, w.took, maxPoll)
		require.NoError(t, w.lock.Unlock(t.Context()))
	})

	t.Run("the lease of a silent holder ends", func(t *testing.T) {
		rdb, waiter, name := start(t)
		holdRaw(t, rdb, name, 800*time.Millisecond)
		start := time.Now()
		l := mustLock(t, waiter.mutex)
		took := time.Since(start)
		require.GreaterOrEqual(t, took, 700*time.Millisecond)
		require.Less(t, took, 800*time.Millisecond+woken)
		require.NoError(t, l.Unlock(t.Context()))
	})

	t.Run("the subscription is restored after the connection broke", func(t *testing.T) {
		t.Parallel()
		server, name := redistest.Start(t), redistest.Name(t)
		rdb, waiter := server.Client(t), newWaiter(t, server, name)
		holdRaw(t, rdb, name, time.Minute)
		w := waiter.wait(t, within(t, patience)).after(func() {
			require.NoError(t, rdb.Del(t.Context(), name).Err()) // nobody publishes
			require.NoError(t, rdb.Do(t.Context(), "client", "kill", "type", "pubsub").Err())
		})
		require.NoError(t, w.err)
		require.Less(t, w.took, woken)
		require.NoError(t, w.lock.Unlock(t.Context()))
	})

	t.Run("its context ends, and then says both", func(t *testing.T) {
		rdb, waiter, name := start(t)
		holdRaw(t, rdb, name, time.Minute)
		ctx, cancel := context.WithCancelCause(t.Context())
		errWhy := errors.New("why")
		w := waiter.wait(t, ctx).after(func() { cancel(errWhy) })
		require.Less(t, w.took, woken)
		require.ErrorIs(t, w.err, context.Canceled)
		require.ErrorIs(t, w.err, errWhy)
		var locked *redislock.LockedError
		require.ErrorAs(t, w.err, &locked)
		require.Greater(t, locked.TTL, 30*time.Second)
	})

	t.Run("Redis refuses, and then says why", func(t *testing.T) {
		rdb, waiter, name := start(t)
		holdRaw(t, rdb, name, time.Minute)
		w := waiter.wait(t, within(t, patience)).after(func() {
			require.NoError(t, rdb.Set(t.Context(), name, "not a lock", time.Minute).Err())
			require.NoError(t, rdb.Publish(t.Context(), scripts.LockChannel(name), "0").Err())
		})
		require.ErrorIs(t, w.err, redislock.ErrWrongKind)
		require.NotErrorIs(t, w.err, redislock.ErrLocked)
	})
}

func TestMutex_Lock_ServesEveryWaiterOfAProcess(t *testing.T) {
	t.Parallel()
	c, rdb, name := shared(t)
	m := c.Mutex(name)
	const waiters = 30
	ctx := within(t, patience)
	inside, total := 0, 0
	errs := make([]error, waiters)
	var running sync.WaitGroup
	for i := range waiters {
		running.Go(func() {
			errs[i] = m.Do(ctx, func(context.Context) error {
				// The lock guards these: the race detector is the checker.
				inside++
				total++
				if inside != 1 {
					return errors.New("not alone")
				}
				inside--
				return nil
			})
		})
	}
	running.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, waiters, total)
	requireFree(t, rdb, name)
}
