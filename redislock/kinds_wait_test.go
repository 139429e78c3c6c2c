package redislock_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func onlyOneConnection(o *redis.UniversalOptions) { o.PoolSize, o.MaxActiveConns = 1, 1 }

func isNil(err error) bool { return errors.Is(err, redis.Nil) }

func entersOnUnlock(t *testing.T, lut *lockUnderTest) {
	holder, waiter := lut.mutex(lut.newClient(t)), lut.newWaiter(t, lut.conflictingMutex)
	requireWokenWithoutPoll(t, func() time.Duration {
		l := mustTryLock(t, holder)
		waiting := waiter.startWaiting(t, within(t, patience))
		mustUnlock(t, l)
		free := time.Now()
		mustUnlock(t, waiting.await(t))
		return waiting.at.Sub(free)
	})
	lut.requireNoKeys(t)
}

func entersOnClose(t *testing.T, lut *lockUnderTest) {
	waiter := lut.newWaiter(t, lut.conflictingMutex)
	requireWokenWithoutPoll(t, func() time.Duration {
		c := lut.newClient(t)
		mustTryLock(t, lut.mutex(c))
		waiting := waiter.startWaiting(t, within(t, patience))
		require.NoError(t, c.Close(within(t, patience)))
		free := time.Now()
		mustUnlock(t, waiting.await(t))
		return waiting.at.Sub(free)
	})
	lut.requireNoKeys(t)
}

func entersOnForce(t *testing.T, lut *lockUnderTest) {
	c := lut.newClient(t)
	waiter := lut.newWaiter(t, lut.conflictingMutex)
	requireWokenWithoutPoll(t, func() time.Duration {
		lost := mustTryLock(t, lut.mutex(c))
		waiting := waiter.startWaiting(t, within(t, patience))
		freed, err := lut.partMutex(lut.newClient(t)).ForceUnlock(t.Context())
		require.NoError(t, err)
		require.True(t, freed)
		free := time.Now()
		l := waiting.await(t)
		lut.requireHeldOnce(t)
		require.ErrorIs(t, lost.Unlock(t.Context()), redislock.ErrLost)
		lut.requireHeldOnce(t)
		mustUnlock(t, l)
		return waiting.at.Sub(free)
	})
}

func entersOnExpiry(t *testing.T, lut *lockUnderTest) {
	m, start := lut.mutex(lut.newClient(t)), time.Now()
	lut.writeHold(t, 800*time.Millisecond)
	l := mustLock(t, m)
	require.GreaterOrEqual(t, time.Since(start), 800*time.Millisecond)
	require.Less(t, time.Since(start), 6*time.Second, "when it ends, or by a poll if the machine is busy")
	mustUnlock(t, l)
	lut.requireNoKeys(t)
}

func entersByAPoll(t *testing.T, lut *lockUnderTest) {
	free := lut.writeHold(t, 0) // only a message helps, or a poll
	waiter := lut.newWaiter(t, lut.mutex)
	waiting := waiter.startWaiting(t, within(t, patience))
	looks := waiter.count.scriptCalls()
	free()
	freed := time.Now()
	l := waiting.await(t)
	require.Less(t, waiter.count.scriptCalls(), looks+10, "it does not ask all the time")
	require.Less(t, waiting.at.Sub(freed), 6*time.Second, "the longest interval, and room for a busy machine")
	mustUnlock(t, l)
	lut.requireNoKeys(t)
}

func spuriousMessage(t *testing.T, lut *lockUnderTest) {
	held, waiter := lut.mustLock(t), lut.newWaiter(t, lut.conflictingMutex)
	waiting := waiter.startWaiting(t, within(t, patience))
	channel := scripts.RWChannel(lut.name)
	switch lut.kind {
	case "plain":
		channel = scripts.LockChannel(lut.name)
	case "fair":
		channel = scripts.LockChannel(lut.name) + ":" + fairQueue(t, lut.rdb, lut.name)[0]
	}
	looks := waiter.count.scriptCalls()
	require.NoError(t, lut.rdb.Do(t.Context(), lut.publishCommand(), channel, "0").Err())
	poll(t, func() bool { return waiter.count.scriptCalls() > looks })
	require.False(t, isClosed(waiting.done))
	require.True(t, held.Valid())
	mustUnlock(t, held)
	mustUnlock(t, waiting.await(t))
}

func givesUp(t *testing.T, lut *lockUnderTest) {
	held := lut.mustLock(t)
	holders := lut.requireHeldOnce(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := lut.newWaiter(t, lut.conflictingMutex).startWaiting(t, ctx)
	next := lut.newWaiter(t, lut.conflictingMutex).startWaiting(t, within(t, patience))
	errWhy := errors.New("why")
	start := time.Now()
	cancel(errWhy)
	<-gone.done
	require.Less(t, gone.at.Sub(start), 5*time.Second)
	require.ErrorIs(t, gone.err, context.Canceled)
	require.ErrorIs(t, gone.err, errWhy)
	require.ErrorIs(t, gone.err, redislock.ErrLocked)
	var locked *redislock.LockedError
	require.ErrorAs(t, gone.err, &locked)
	require.Positive(t, locked.TTL)
	require.Equal(t, holders, lut.requireHeldOnce(t))

	start = time.Now()
	_, err := lut.conflictingMutex(lut.newClient(t)).Lock(within(t, 300*time.Millisecond))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, redislock.ErrLocked)
	require.GreaterOrEqual(t, time.Since(start), 300*time.Millisecond)
	require.Less(t, time.Since(start), 5*time.Second)
	require.Equal(t, holders, lut.requireHeldOnce(t))
	mustUnlock(t, held)
	mustUnlock(t, next.await(t))
	poll(t, func() bool { return len(lut.remainingKeys(t)) == 0 })
}

func aHundredGiveUp(t *testing.T, lut *lockUnderTest) {
	held := lut.mustLock(t)
	holders := lut.requireHeldOnce(t)
	ctx, cancel := context.WithCancel(t.Context())
	m := lut.conflictingMutex(lut.newClient(t))
	results := make(chan error, 100)
	for range cap(results) {
		go func() {
			_, err := m.Lock(ctx)
			results <- err
		}()
	}
	poll(t, func() bool { return len(lut.channelsWith(t, lut.name)) > 0 })
	cancel()
	for range cap(results) {
		require.ErrorIs(t, <-results, context.Canceled)
	}
	require.Equal(t, holders, lut.requireHeldOnce(t))
	mustUnlock(t, held)
	poll(t, func() bool { return len(lut.remainingKeys(t)) == 0 })
	mustUnlock(t, lut.mustLock(t))
}

// Every way in which a caller's context can end: at each stage of a call, by brute force. What was taken by a call that failed is
// given back, so that the name is soon free.
func contextEndsAnywhere(t *testing.T, lut *lockUnderTest) {
	m := lut.mutex(lut.newClient(t), redislock.WithLease(time.Minute))
	w := newWheel(t)
	took, gaveUp := 0, 0
	for i := range 60 {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := w.AfterFunc(time.Duration(i%30)*150*time.Microsecond, cancel)
		require.NoError(t, err)
		l, err := m.Lock(ctx)
		if err == nil {
			took++
			require.NoError(t, l.Unlock(ctx))
		} else {
			gaveUp++
			require.ErrorIs(t, err, context.Canceled)
		}
		cancel()
	}
	t.Logf("%d took the lock, %d gave up", took, gaveUp)
	start := time.Now()
	l := mustLock(t, lut.conflictingMutex(lut.newClient(t)))
	require.Less(t, time.Since(start), 20*time.Second, "long before the lease ends")
	mustUnlock(t, l)
	poll(t, func() bool { return len(lut.remainingKeys(t)) == 0 })
}

func callsBack(t *testing.T, lut *lockUnderTest) {
	held := lut.mustLock(t)
	holders := lut.requireHeldOnce(t)
	c := lut.newClient(t)
	m := lut.conflictingMutex(c).(*redislock.Mutex)
	call := func() (<-chan *asyncCall, func()) {
		results := make(chan *asyncCall, 1)
		return results, m.LockFunc(t.Context(), func(l *redislock.Lock, err error) { results <- &asyncCall{lock: l, err: err} })
	}
	granted, tooLate := call()
	given, cancel := call()
	cancel()
	require.ErrorIs(t, (<-given).err, context.Canceled)
	require.Equal(t, holders, lut.requireHeldOnce(t))
	mustUnlock(t, held)
	b := <-granted
	require.NoError(t, b.err)
	tooLate()
	require.True(t, b.lock.Valid())
	mustUnlock(t, b.lock)
	poll(t, func() bool { return len(lut.remainingKeys(t)) == 0 })
}

// Many callers of several processes, each of which has one connection to a node, with locks of all kinds.
func TestKinds_ManyCallersOnOneConnection(t *testing.T) {
	t.Parallel()
	onEachDeployment(t, func(t *testing.T, dep *deployment) {
		const processes, callers, times, names = 3, 4, 5, 2
		var subjects []*lockUnderTest
		for _, kind := range exclusiveKinds {
			for range names {
				subjects = append(subjects, newLockUnderTest(t, dep, kind))
			}
		}
		counts := make([]int, len(subjects)) // each guarded by its lock: the race detector is the checker
		var running sync.WaitGroup
		for range processes {
			c := newClient(t, dep.connect(t, onlyOneConnection))
			for i, lut := range subjects {
				for range callers {
					running.Go(func() {
						for range times {
							if err := lut.mutex(c).Do(within(t, patience), func(context.Context) error { counts[i]++; return nil }); err != nil {
								t.Error(err)
							}
						}
					})
				}
			}
		}
		running.Wait()
		for i, lut := range subjects {
			require.Equal(t, processes*callers*times, counts[i], lut.kind)
			lut.requireNoKeys(t)
		}
		for _, lut := range subjects { // they linger for a few seconds
			poll(t, func() bool { return len(lut.channelsWith(t, lut.name)) == 0 })
		}
	})
}

// Processes that share nothing but Redis.
func TestKinds_ExcludeProcesses(t *testing.T) {
	t.Parallel()
	const processes, times = 3, 20
	count := func(t *testing.T, dep *deployment, role, kind string) int {
		name := redistest.Name(t)
		var running sync.WaitGroup
		errs := make([]error, processes)
		for i := range processes {
			cmd := childCommand(t, role, dep.options.Addrs, name, times)
			cmd.Env = append(cmd.Env, childKind+"="+kind, childPeers+"="+strconv.Itoa(processes))
			running.Go(func() { errs[i] = cmd.Run() })
		}
		running.Wait()
		require.NoError(t, errors.Join(errs...))
		require.ElementsMatch(t, []string{name + counterTail, name + readyTail}, dep.keysWith(t, name))
		n, err := dep.rdb.Get(t.Context(), name+counterTail).Int()
		require.NoError(t, err)
		return n
	}
	onEachDeployment(t, func(t *testing.T, dep *deployment) {
		for _, kind := range []string{"plain", "fair", "write"} {
			t.Run(kind+": no update is lost", func(t *testing.T) {
				t.Parallel()
				require.Equal(t, processes*times, count(t, dep, roleCount, kind))
			})
		}
		t.Run("read: updates are lost, as readers share it (control)", func(t *testing.T) {
			t.Parallel()
			require.Less(t, count(t, dep, roleCount, "read"), processes*times)
		})
		t.Run("without a lock they are lost, too (control)", func(t *testing.T) {
			t.Parallel()
			require.Less(t, count(t, dep, roleNoLock, "plain"), processes*times)
		})
	})
}

// A holder that is killed is succeeded when its lease ends, not before.
func TestKinds_AreTakenOverFromAKilledProcess(t *testing.T) {
	t.Parallel()
	onEachDeployment(t, func(t *testing.T, dep *deployment) {
		for _, kinds := range [][2]string{{"plain", "plain"}, {"fair", "fair"}, {"write", "read"}, {"read", "write"}} {
			t.Run(kinds[1]+" after "+kinds[0], func(t *testing.T) {
				t.Parallel()
				lut := newLockUnderTest(t, dep, kinds[1])
				holder := childCommand(t, roleHold, dep.options.Addrs, lut.name, 0)
				holder.Env = append(holder.Env, childKind+"="+kinds[0])
				stdin, err := holder.StdinPipe()
				require.NoError(t, err)
				defer stdin.Close()
				require.NoError(t, holder.Start())
				poll(t, func() bool { return dep.rdb.Exists(t.Context(), lut.name).Val() == 1 })
				next := lut.newWaiter(t, lut.mutex).startWaiting(t, within(t, patience))
				require.NoError(t, holder.Process.Kill())
				require.Error(t, holder.Wait())
				dead := time.Now()
				left := dep.rdb.PTTL(t.Context(), lut.name).Val()
				require.Positive(t, left)
				l := next.await(t)
				require.GreaterOrEqual(t, next.at.Sub(dead), left-10*time.Millisecond)
				require.Less(t, next.at.Sub(dead), left+6*time.Second)
				mustUnlock(t, l)
				lut.requireNoKeys(t)
			})
		}
	})
}
