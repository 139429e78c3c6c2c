package redislock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// newWaiter returns a waiter with a client of its own. newMutex is lut.mutex or lut.conflictingMutex.
func (lut *lockUnderTest) newWaiter(
	t testing.TB, newMutex func(*redislock.Client, ...redislock.LockOption) anyMutex,
) waiter {
	t.Helper()
	c, count := newCountedClient(t, lut.connect(t))
	return waiter{newMutex(c), count}
}

// asyncCall is a call that runs on its own goroutine. Its results may be read once done is closed.
type asyncCall struct {
	lock *redislock.Lock
	err  error
	at   time.Time // when the call returned
	done chan struct{}
}

// await waits for the call, which must succeed, and returns its lock.
func (b *asyncCall) await(t testing.TB) *redislock.Lock {
	t.Helper()
	<-b.done
	require.NoError(t, b.err)
	return b.lock
}

// callAsync starts f on a goroutine of its own.
func callAsync(f func() (*redislock.Lock, error)) *asyncCall {
	b := &asyncCall{done: make(chan struct{})}
	go func() {
		defer close(b.done)
		b.lock, b.err = f()
		b.at = time.Now()
	}()
	return b
}

// waiter is a mutex of a client of its own, whose script calls are counted.
type waiter struct {
	anyMutex
	count *commandCounter
}

// startWaiting calls Lock and returns once the call has tried before and after its subscription, and waits.
func (c waiter) startWaiting(t testing.TB, ctx context.Context) *asyncCall {
	t.Helper()
	before := c.count.scriptCalls()
	b := callAsync(func() (*redislock.Lock, error) { return c.Lock(ctx) })
	poll(t, func() bool { return c.count.scriptCalls() >= before+2 || isClosed(b.done) })
	require.False(t, isClosed(b.done), "the call should wait: %v", b.err)
	return b
}

// requireWokenWithoutPoll checks that messages wake waiters. Three rounds must take less time than three
// polls, which are at least a second apart. A round returns the time from the release to the grant; stalls of
// the process do not count.
func requireWokenWithoutPoll(t testing.TB, round func() time.Duration) {
	t.Helper()
	var took time.Duration
	stalled := stalls(t)
	for range 3 {
		took += round()
	}
	require.Less(t, took-stalled(), 2500*time.Millisecond)
}
