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

// waiting is a Lock call under way.
type waiting struct {
	lock *redislock.Lock
	err  error
	took time.Duration // from the instant that release returned
	done chan struct{}
	from time.Time
}

// wait starts a Lock call and returns once it is subscribed.
func wait(t *testing.T, ctx context.Context, rdb *redis.Client, m *redislock.Mutex) *waiting {
	t.Helper()
	w := &waiting{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.lock, w.err = m.Lock(ctx)
	}()
	awaitWaiters(t, rdb, m.Name(), 1)
	return w
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
	const lookBetween = 6 * time.Second // the longest poll interval and room for a busy machine

	t.Run("the holder unlocks", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := shared(t)
		held := mustLock(t, newClient(t, rdb).Mutex(name))
		w := wait(t, within(t, patience), rdb, c.Mutex(name)).after(func() {
			require.NoError(t, held.Unlock(t.Context()))
		})
		require.NoError(t, w.err)
		require.Less(t, w.took, 900*time.Millisecond, "woken, not found by the poll")
		require.NoError(t, w.lock.Unlock(t.Context()))
	})

	t.Run("a client of another language unlocks", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := shared(t)
		holdRaw(t, rdb, name, time.Minute)
		w := wait(t, within(t, patience), rdb, c.Mutex(name)).after(func() {
			require.NoError(t, rdb.Del(t.Context(), name).Err())
			require.NoError(t, rdb.Publish(t.Context(), scripts.LockChannel(name), "0").Err())
		})
		require.NoError(t, w.err)
		require.Less(t, w.took, 900*time.Millisecond, "woken, not found by the poll")
		require.NoError(t, w.lock.Unlock(t.Context()))
	})

	t.Run("the poll finds the lock free although the message was lost", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := shared(t)
		holdRaw(t, rdb, name, time.Minute)
		w := wait(t, within(t, patience), rdb, c.Mutex(name)).after(func() {
			require.NoError(t, rdb.Del(t.Context(), name).Err()) // and nobody publishes
		})
		require.NoError(t, w.err)
		require.Less(t, w.took, lookBetween)
		require.NoError(t, w.lock.Unlock(t.Context()))
	})

	t.Run("a key without expiry is removed", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := shared(t)
		holdRaw(t, rdb, name, 0)
		w := wait(t, within(t, patience), rdb, c.Mutex(name)).after(func() {
			require.NoError(t, rdb.Del(t.Context(), name).Err())
		})
		require.NoError(t, w.err)
		require.Less(t, w.took, lookBetween)
		require.NoError(t, w.lock.Unlock(t.Context()))
	})

	t.Run("the lease of a silent holder ends", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := shared(t)
		holdRaw(t, rdb, name, 800*time.Millisecond)
		start := time.Now()
		l := mustLock(t, c.Mutex(name))
		took := time.Since(start)
		require.GreaterOrEqual(t, took, 700*time.Millisecond)
		require.Less(t, took, 800*time.Millisecond+lookBetween/2)
		require.NoError(t, l.Unlock(t.Context()))
	})

	t.Run("the subscription is restored after the connection broke", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		rdb, name := server.Client(t), redistest.Name(t)
		c := newClient(t, rdb)
		holdRaw(t, rdb, name, time.Minute)
		w := wait(t, within(t, patience), rdb, c.Mutex(name)).after(func() {
			require.NoError(t, rdb.Do(t.Context(), "client", "kill", "type", "pubsub").Err())
			require.NoError(t, rdb.Del(t.Context(), name).Err()) // whatever was published is lost
		})
		require.NoError(t, w.err)
		require.Less(t, w.took, lookBetween)
		require.NoError(t, w.lock.Unlock(t.Context()))
	})

	t.Run("its context ends, and then says both", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := shared(t)
		holdRaw(t, rdb, name, time.Minute)
		ctx, cancel := context.WithCancelCause(t.Context())
		errWhy := errors.New("why")
		w := wait(t, ctx, rdb, c.Mutex(name)).after(func() { cancel(errWhy) })
		require.Less(t, w.took, 500*time.Millisecond)
		require.ErrorIs(t, w.err, context.Canceled)
		require.ErrorIs(t, w.err, errWhy)
		var locked *redislock.LockedError
		require.ErrorAs(t, w.err, &locked)
		require.Greater(t, locked.TTL, 30*time.Second)
	})

	t.Run("Redis refuses, and then says why", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := shared(t)
		holdRaw(t, rdb, name, time.Minute)
		w := wait(t, within(t, patience), rdb, c.Mutex(name)).after(func() {
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
