package redislock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// inLine has n callers stand in line for the lock in order, each of whom unlocks it at once. served gets their numbers.
func startLockFuncs(t *testing.T, m *redislock.Mutex, n int) (served <-chan int) {
	t.Helper()
	order := make(chan int, n)
	for i := range n {
		m.LockFunc(t.Context(), func(l *redislock.Lock, err error) {
			if err != nil {
				t.Error(err)
			} else {
				order <- i
				// The last one may find the test over and the client closed, which has released the lock for it.
				if err := l.Unlock(context.Background()); err != nil && !errors.Is(err, redislock.ErrClosed) {
					t.Error(err)
				}
			}
		})
	}
	return order
}

// Locks of one holder are passed on within a process.
func TestKinds_Handoff(t *testing.T) {
	t.Parallel()
	const callers = 50
	roundTrips := func(t *testing.T, lut *lockUnderTest, opts ...redislock.LockOption) int {
		t.Helper()
		c, count := newCountedClient(t, lut.connect(t))
		m := newMutex(c, lut.kind, lut.name, opts...)
		held := mustLock(t, m)
		order := startLockFuncs(t, m, callers)
		before := count.scriptCalls()
		require.NoError(t, held.Unlock(t.Context()))
		for i := range callers {
			require.Equal(t, i, <-order, "in order of arrival")
		}
		poll(t, func() bool { return len(lut.remainingKeys(t)) == 0 })
		return count.scriptCalls() - before
	}
	onEachDeployment(t, func(t *testing.T, dep *deployment) {
		for _, kind := range []string{"plain", "write"} {
			t.Run(kind+": callers of a process are served in order without asking Redis", func(t *testing.T) {
				t.Parallel()
				// A few, where an unlock meets an attempt under way on behalf of all who wait.
				require.LessOrEqual(t, roundTrips(t, newLockUnderTest(t, dep, kind), redislock.WithHandoff(1000, time.Minute)), callers/2)
			})

			t.Run(kind+": so too with fencing", func(t *testing.T) {
				t.Parallel()
				// The first look reserved no tokens, as nobody stood in line yet; the second did.
				opts := []redislock.LockOption{redislock.WithHandoff(1000, time.Minute), redislock.WithFencing()}
				require.LessOrEqual(t, roundTrips(t, newLockUnderTest(t, dep, kind), opts...), callers/2)
			})

			t.Run(kind+": Redis is asked for each where it is switched off (control)", func(t *testing.T) {
				t.Parallel()
				require.Greater(t, roundTrips(t, newLockUnderTest(t, dep, kind), redislock.WithHandoff(0, 0)), callers)
			})
		}
	})
}

func TestMutex_Handoff(t *testing.T) {
	t.Parallel()

	t.Run("ends when the lock was lost", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		m := c.Mutex(name)
		held := mustLock(t, m)
		order := startLockFuncs(t, m, 1)
		require.NoError(t, rdb.Del(t.Context(), name).Err())
		other := mustLock(t, newClient(t, rdb).Mutex(name))
		require.ErrorIs(t, held.Extend(t.Context(), time.Minute), redislock.ErrLost)
		holder := requireHeldOnce(t, rdb, name)
		require.Empty(t, order)
		require.Equal(t, holder, requireHeldOnce(t, rdb, name))
		require.NoError(t, other.Unlock(t.Context()))
		require.Zero(t, <-order)
	})

	t.Run("a lock that was handed on is renewed, and an old handle cannot touch it", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		m := c.Mutex(name, redislock.WithLease(8*time.Second), redislock.WithHandoff(100, time.Minute))
		// A caller who comes in the very instant of the unlock may find himself asking Redis instead.
		first, second, holder := (*redislock.Lock)(nil), mustLock(t, m), ""
		got := make(chan *redislock.Lock, 1)
		for range 100 {
			first, holder = second, requireHeldOnce(t, rdb, name)
			m.LockFunc(t.Context(), func(l *redislock.Lock, _ error) { got <- l })
			require.NoError(t, first.Unlock(t.Context()))
			if second = <-got; requireHeldOnce(t, rdb, name) == holder {
				break
			}
		}
		require.Equal(t, holder, requireHeldOnce(t, rdb, name), "the key stayed as it was")
		require.ErrorIs(t, first.Unlock(t.Context()), redislock.ErrNotHeld)
		require.ErrorIs(t, first.Extend(t.Context(), time.Minute), redislock.ErrNotHeld)
		deadline := second.Deadline()
		poll(t, func() bool { return second.Deadline().After(deadline) })
		require.Equal(t, holder, requireHeldOnce(t, rdb, name))
		require.NoError(t, second.Unlock(t.Context()))
		requireFree(t, rdb, name)
	})
}

// Callers that come again and again in one process do not keep those of another from the lock.
func TestMutex_HandoffStarvesNobody(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	busy, other := c.Mutex(name), newClient(t, rdb).Mutex(name)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for range 8 {
		running.Go(func() {
			for ctx.Err() == nil {
				if l, err := busy.Lock(ctx); err == nil {
					_ = l.Unlock(context.Background())
				}
			}
		})
	}
	for range 5 {
		l := mustLock(t, other)
		require.NoError(t, l.Unlock(t.Context()))
	}
	stop()
	running.Wait()
}

func TestMutex_OneAttemptPerProcessAndWake(t *testing.T) {
	t.Parallel()
	const waiters = 20
	server := redistest.Shared(t)
	rdb := server.Client(t)
	name := redistest.Name(t)
	writeHold(t, rdb, name, time.Minute)
	c, count := newCountedClient(t, server.Client(t))
	m := c.Mutex(name, redislock.WithHandoff(0, 0))
	order := startLockFuncs(t, m, waiters)
	awaitSubscription(t, rdb, name)
	poll(t, func() bool { return count.scriptCalls() >= 2 })
	require.Less(t, count.scriptCalls(), 6, "before and after the subscription, for all of them, and a poll or two")

	before := count.scriptCalls()
	require.NoError(t, rdb.Publish(t.Context(), scripts.LockChannel(name), "0").Err())
	poll(t, func() bool { return count.scriptCalls() > before })
	require.LessOrEqual(t, count.scriptCalls(), before+2, "one look for a message, and a poll perhaps")

	require.NoError(t, rdb.Del(t.Context(), name).Err())
	require.NoError(t, rdb.Publish(t.Context(), scripts.LockChannel(name), "0").Err())
	for i := range waiters {
		require.Equal(t, i, <-order)
	}
}
