package redislock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func unlockWakesWaiter(t *testing.T, lut *lockUnderTest) {
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

func closeWakesWaiter(t *testing.T, lut *lockUnderTest) {
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

func forceUnlockWakesWaiter(t *testing.T, lut *lockUnderTest) {
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

// Guarantees: L12.
func waiterAcquiresOnExpiry(t *testing.T, lut *lockUnderTest) {
	m, start := lut.mutex(lut.newClient(t)), time.Now()
	lut.writeHold(t, 800*time.Millisecond)
	l := mustLock(t, m)
	require.GreaterOrEqual(t, time.Since(start), 800*time.Millisecond)
	require.Less(t, time.Since(start), 6*time.Second, "when the lease ends, or by a poll on a busy machine")
	mustUnlock(t, l)
	lut.requireNoKeys(t)
}

// Guarantees: L16.
func waiterAcquiresByPolling(t *testing.T, lut *lockUnderTest) {
	skipIfShort(t)
	free := lut.writeHold(t, 0) // without an expiry, so only a message or a poll ends the wait
	waiter := lut.newWaiter(t, lut.mutex)
	waiting := waiter.startWaiting(t, within(t, patience))
	attempts := waiter.count.scriptCalls()
	free()
	freed := time.Now()
	l := waiting.await(t)
	require.Less(t, waiter.count.scriptCalls(), attempts+10, "it does not poll all the time")
	require.Less(t, waiting.at.Sub(freed), 6*time.Second, "the longest interval, with room for a busy machine")
	mustUnlock(t, l)
	lut.requireNoKeys(t)
}

func messageWithoutReleaseGrantsNothing(t *testing.T, lut *lockUnderTest) {
	held, waiter := lut.mustLock(t), lut.newWaiter(t, lut.conflictingMutex)
	waiting := waiter.startWaiting(t, within(t, patience))
	channel := scripts.RWChannel(lut.name)
	switch lut.kind {
	case "plain", "string":
		channel = scripts.LockChannel(lut.name)
	case "fair":
		channel = scripts.LockChannel(lut.name) + ":" + fairQueue(t, lut.rdb, lut.name)[0]
	}
	attempts := waiter.count.scriptCalls()
	require.NoError(t, lut.rdb.Do(t.Context(), lut.publishCommand(t), channel, "0").Err())
	poll(t, func() bool { return waiter.count.scriptCalls() > attempts })
	require.False(t, isClosed(waiting.done))
	require.True(t, held.Valid())
	mustUnlock(t, held)
	mustUnlock(t, waiting.await(t))
}

func cancelledWaiterLeavesNoKeys(t *testing.T, lut *lockUnderTest) {
	held := lut.mustLock(t)
	holders := lut.requireHeldOnce(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancelled := lut.newWaiter(t, lut.conflictingMutex).startWaiting(t, ctx)
	next := lut.newWaiter(t, lut.conflictingMutex).startWaiting(t, within(t, patience))
	errWhy := errors.New("why")
	start := time.Now()
	cancel(errWhy)
	<-cancelled.done
	require.Less(t, cancelled.at.Sub(start), 5*time.Second)
	require.ErrorIs(t, cancelled.err, context.Canceled)
	require.ErrorIs(t, cancelled.err, errWhy)
	require.ErrorIs(t, cancelled.err, redislock.ErrLocked)
	var locked *redislock.LockedError
	require.ErrorAs(t, cancelled.err, &locked)
	require.Positive(t, locked.TTL)
	require.Equal(t, holders, lut.requireHeldOnce(t))

	start = time.Now()
	_, err := lut.conflictingMutex(lut.newClient(t)).Lock(within(t, 2*time.Second))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, redislock.ErrLocked)
	require.GreaterOrEqual(t, time.Since(start), 2*time.Second)
	require.Less(t, time.Since(start), 10*time.Second)
	require.Equal(t, holders, lut.requireHeldOnce(t))
	mustUnlock(t, held)
	mustUnlock(t, next.await(t))
	poll(t, func() bool { return len(lut.remainingKeys(t)) == 0 })
}

func hundredCancelledWaitersLeaveNoKeys(t *testing.T, lut *lockUnderTest) {
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

// A caller's context ends at each stage of a call, by brute force. A call that fails releases what it
// acquired, so that the name is soon free.
// Guarantees: L5.
func contextEndingAtAnyPointLeavesNoKeys(t *testing.T, lut *lockUnderTest) {
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
	t.Logf("%d acquired, %d gave up", took, gaveUp)
	start := time.Now()
	l := mustLock(t, lut.conflictingMutex(lut.newClient(t)))
	require.Less(t, time.Since(start), 20*time.Second, "long before the lease ends")
	mustUnlock(t, l)
	poll(t, func() bool { return len(lut.remainingKeys(t)) == 0 })
}

func lockFuncCallsBackOnce(t *testing.T, lut *lockUnderTest) {
	held := lut.mustLock(t)
	holders := lut.requireHeldOnce(t)
	c := lut.newClient(t)
	m := lut.conflictingMutex(c).(*redislock.Mutex)
	call := func() (<-chan *asyncCall, func()) {
		results := make(chan *asyncCall, 1)
		return results, m.LockFunc(t.Context(), func(l *redislock.Lock, err error) {
			results <- &asyncCall{lock: l, err: err}
		})
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
