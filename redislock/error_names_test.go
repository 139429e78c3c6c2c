package redislock_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// An error that reaches a log says which call on which lock failed.
func TestErrors_NameTheOperationAndTheLock(t *testing.T) {
	t.Parallel()
	c := newClient(t, redistest.Shared(t).Client(t))
	name := redistest.Name(t)
	m, rw := c.Mutex(name), c.RWMutex(name+"rw")
	l := mustTryLock(t, m)
	require.NoError(t, l.Unlock(t.Context()))
	is := func(err, cause error, operation, name string) {
		t.Helper()
		require.ErrorIs(t, err, cause)
		require.Regexp(t, fmt.Sprintf("^redislock: %s %q: [a-z ]+$", operation, name), err.Error())
	}
	is(l.Unlock(t.Context()), redislock.ErrNotHeld, "unlock", name)
	is(l.Extend(t.Context(), redislock.DefaultLease), redislock.ErrNotHeld, "extend", name)
	writer := mustTryLock(t, rw.Writer())
	require.NoError(t, writer.Unlock(t.Context()))
	_, err := rw.Downgrade(t.Context(), writer)
	is(err, redislock.ErrNotHeld, "downgrade", name+"rw")

	held := mustTryLock(t, m)
	waiting := callAsync(func() (*redislock.Lock, error) { return m.Lock(context.Background()) })
	poll(t, func() bool { return c.Stats().Waiting == 1 })
	require.NoError(t, c.Close(t.Context()))
	<-waiting.done
	is(waiting.err, redislock.ErrClosed, "lock", name)
	_, err = m.TryLock(t.Context())
	is(err, redislock.ErrClosed, "lock", name)
	_, err = m.Lock(t.Context())
	is(err, redislock.ErrClosed, "lock", name)
	is(held.Unlock(t.Context()), redislock.ErrClosed, "unlock", name)
	is(held.Extend(t.Context(), redislock.DefaultLease), redislock.ErrClosed, "extend", name)
}

// A goroutine that locks twice waits for itself, and the error tells.
func TestLockedError_SaysThatThisClientHoldsTheLock(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	c, other := newClient(t, rdb), newClient(t, rdb)
	name := redistest.Name(t)
	mustTryLock(t, c.Mutex(name))
	for _, again := range []func(*redislock.Client) error{
		func(c *redislock.Client) error {
			_, err := c.Mutex(name).TryLock(t.Context())
			return err
		},
		func(c *redislock.Client) error {
			ctx, cancel := context.WithCancel(t.Context())
			before := c.Stats().Contended
			waiting := callAsync(func() (*redislock.Lock, error) { return c.Mutex(name).Lock(ctx) })
			poll(t, func() bool { return c.Stats().Contended > before })
			cancel()
			<-waiting.done
			return waiting.err
		},
	} {
		err := again(c)
		require.ErrorIs(t, err, redislock.ErrLocked)
		require.ErrorContains(t, err, "locked by another call of this Client")
		err = again(other)
		require.ErrorIs(t, err, redislock.ErrLocked)
		require.ErrorContains(t, err, "locked by another")
		require.NotContains(t, err.Error(), "this Client")
	}
}
