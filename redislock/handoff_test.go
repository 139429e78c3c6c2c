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

// startLockFuncs calls LockFunc n times. Each callback sends its number to served and unlocks.
func startLockFuncs(t *testing.T, m *redislock.Mutex, n int) (served <-chan int) {
	t.Helper()
	order := make(chan int, n)
	for i := range n {
		m.LockFunc(t.Context(), func(l *redislock.Lock, err error) {
			if err != nil {
				t.Error(err)
			} else {
				order <- i
				// The last callback may run after the test has closed the client, which has then released the
				// lock.
				if err := l.Unlock(context.Background()); err != nil && !errors.Is(err, redislock.ErrClosed) {
					t.Error(err)
				}
			}
		})
	}
	return order
}

// Within a process, exclusive locks pass from caller to caller without a call to Redis.
// Guarantees: L36.
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
			t.Run(kind+": serves the callers of a process in order without calls to Redis", func(t *testing.T) {
				t.Parallel()
				// Some round trips remain: an unlock may meet an attempt in flight for all waiters.
				require.LessOrEqual(
					t, roundTrips(t, newLockUnderTest(t, dep, kind), redislock.WithHandoff(1000, time.Minute)), callers/2,
				)
			})

			t.Run(kind+": the same with fencing", func(t *testing.T) {
				t.Parallel()
				// The first attempt reserved no tokens, since no caller was waiting. The second did.
				opts := []redislock.LockOption{redislock.WithHandoff(1000, time.Minute), redislock.WithFencing()}
				require.LessOrEqual(t, roundTrips(t, newLockUnderTest(t, dep, kind), opts...), callers/2)
			})

			t.Run(kind+": control: without hand-over each caller calls Redis", func(t *testing.T) {
				t.Parallel()
				require.Greater(t, roundTrips(t, newLockUnderTest(t, dep, kind), redislock.WithHandoff(0, 0)), callers)
			})
		}
	})
}

// Guarantees: L36.
func TestMutex_Handoff(t *testing.T) {
	t.Parallel()

	t.Run("does not hand over a lost lock", func(t *testing.T) {
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

	t.Run("renews a lock that was handed over; an old handle cannot change it", func(t *testing.T) {
		skipIfShort(t)
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		m := c.Mutex(name, redislock.WithLease(8*time.Second), redislock.WithHandoff(100, time.Minute))
		// A caller that arrives at the very moment of the unlock may ask Redis itself.
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
		require.Equal(t, holder, requireHeldOnce(t, rdb, name), "the hold in Redis did not change")
		require.ErrorIs(t, first.Unlock(t.Context()), redislock.ErrNotHeld)
		require.ErrorIs(t, first.Extend(t.Context(), time.Minute), redislock.ErrNotHeld)
		deadline := second.Deadline()
		poll(t, func() bool { return second.Deadline().After(deadline) })
		require.Equal(t, holder, requireHeldOnce(t, rdb, name))
		require.NoError(t, second.Unlock(t.Context()))
		requireFree(t, rdb, name)
	})
}

// Repeated callers of one process do not starve those of another.
// Guarantees: L36.
func TestMutex_HandoffDoesNotStarveOtherProcesses(t *testing.T) {
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

// Guarantees: L36.
func TestMutex_OneAttemptPerProcessAndMessage(t *testing.T) {
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
	require.Less(t, count.scriptCalls(), 6, "attempts before and after the subscription, and a poll or two")

	before := count.scriptCalls()
	require.NoError(t, rdb.Publish(t.Context(), scripts.LockChannel(name), "0").Err())
	poll(t, func() bool { return count.scriptCalls() > before })
	require.LessOrEqual(t, count.scriptCalls(), before+2, "one attempt per message, and perhaps a poll")

	require.NoError(t, rdb.Del(t.Context(), name).Err())
	require.NoError(t, rdb.Publish(t.Context(), scripts.LockChannel(name), "0").Err())
	for i := range waiters {
		require.Equal(t, i, <-order)
	}
}

// However many callers wait, a lock passes from caller to caller so many times, and is then free for other processes.
func TestWithHandoff_IsTheNumberOfHandovers(t *testing.T) {
	t.Parallel()
	const waiters, handovers = 20, 3
	rdb := redistest.Start(t).Client(t)
	c, n := newCountedClient(t, rdb)
	m := c.Mutex(redistest.Name(t), redislock.WithHandoff(handovers, time.Minute))
	held := mustLock(t, m)
	order := startLockFuncs(t, m, waiters)
	before := n.scriptCalls()
	mustUnlock(t, held)
	for range waiters {
		<-order
	}
	require.GreaterOrEqual(t, n.scriptCalls()-before, 2*(waiters-handovers)/(handovers+1), "acquisitions and releases")
}

func TestWithHandoff_OfNoneAsksRedisForEachLock(t *testing.T) {
	t.Parallel()
	const waiters = 20
	for _, on := range []bool{true, false} {
		handoff := redislock.WithHandoff(waiters, time.Minute) // longer than any machine needs
		if !on {
			handoff = redislock.WithHandoff(0, 0)
		}
		rdb := redistest.Start(t).Client(t)
		n := &commandCounter{n: make(map[string]int)}
		rdb.AddHook(n)
		m := newClient(t, rdb, redislock.WithLockDefaults(handoff)).Mutex(redistest.Name(t))
		held := mustLock(t, m)
		order := startLockFuncs(t, m, waiters)
		before := n.scriptCalls()
		mustUnlock(t, held)
		for range waiters {
			<-order
		}
		if on {
			require.Less(t, n.scriptCalls()-before, waiters)
		} else {
			require.GreaterOrEqual(t, n.scriptCalls()-before, 2*waiters-1, "an acquisition and a release each")
		}
	}
}
