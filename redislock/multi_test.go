package redislock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// Guarantees: L21, L30.
func TestMultiMutex(t *testing.T) {
	t.Parallel()

	// Guarantees: L31.
	t.Run("callers that name them in different orders do not deadlock", func(t *testing.T) {
		t.Parallel()
		c, rdb, _ := onSharedServer(t)
		names, other := threeNames(t), newClient(t, rdb)
		ctx := within(t, patience)
		var running sync.WaitGroup
		inside := 0 // guarded by the locks; the race detector checks it
		errs := make(chan error, 100)
		for i := range 3 {
			for _, c := range []*redislock.Client{c, other} {
				m := c.MultiMutex([]string{names[i], names[(i+2)%3], names[(i+1)%3]})
				running.Go(func() {
					for range 10 {
						errs <- m.Do(ctx, func(context.Context) error {
							inside++
							return nil
						})
					}
				})
			}
		}
		running.Wait()
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		require.Equal(t, 60, inside)
		requireAllFree(t, rdb, names[:]...)
	})

	t.Run("is lost with any part, and releases the others", func(t *testing.T) {
		t.Parallel()
		c, rdb, _ := onSharedServer(t)
		names := threeNames(t)
		l, err := c.MultiMutex(names[:], redislock.WithLease(safeLease)).TryLock(t.Context())
		require.NoError(t, err)
		ctx := l.Context(t.Context())
		require.NoError(t, rdb.Del(t.Context(), names[1]).Err())
		<-l.Done()
		require.ErrorIs(t, l.Err(), redislock.ErrLost)
		require.ErrorContains(t, l.Err(), names[1])
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), redislock.ErrLost)
		require.False(t, l.Valid())
		poll(t, func() bool { return rdb.Exists(t.Context(), names[0], names[2]).Val() == 0 })
		require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrLost)
		require.ErrorIs(t, l.Extend(t.Context(), time.Minute), redislock.ErrLost)
	})

	t.Run("renews its parts", func(t *testing.T) {
		skipIfShort(t)
		t.Parallel()
		c, rdb, _ := onSharedServer(t)
		names := threeNames(t)
		l, err := c.MultiMutex(names[:], redislock.WithLease(safeLease)).TryLock(t.Context())
		require.NoError(t, err)
		awaitRenewals(t, safeLease/2, l)
		mustUnlock(t, l)
		requireAllFree(t, rdb, names[:]...)
	})

	t.Run("acquires parts again whose leases ended during the wait", func(t *testing.T) {
		skipIfShort(t)
		t.Parallel()
		c, rdb, _ := onSharedServer(t)
		names := threeNames(t)
		writeHold(t, rdb, names[2], 3500*time.Millisecond)
		m := c.MultiMutex(names[:], redislock.WithLease(3*time.Second), redislock.WithoutRenewal())
		l, err := m.Lock(within(t, patience))
		require.NoError(t, err)
		require.True(t, l.Valid())
		mustUnlock(t, l)
		requireAllFree(t, rdb, names[:]...)
	})

	t.Run("Close ends it with ErrClosed and frees all parts", func(t *testing.T) {
		t.Parallel()
		rdb, names := redistest.Shared(t).Client(t), threeNames(t)
		c, err := redislock.New(rdb, redislock.WithWheel(newWheel(t)))
		require.NoError(t, err)
		l, err := c.MultiMutex(names[:]).TryLock(t.Context())
		require.NoError(t, err)
		require.NoError(t, c.Close(within(t, patience)))
		<-l.Done()
		require.ErrorIs(t, l.Err(), redislock.ErrClosed)
		require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrClosed)
		requireAllFree(t, rdb, names[:]...)
	})

	t.Run("Close frees all parts while the end of one releases the others", func(t *testing.T) {
		t.Parallel()
		rdb, base := redistest.Shared(t).Client(t), redistest.Name(t)
		w := newWheel(t)
		for round := range 40 {
			names := make([]string, 20)
			for i := range names {
				names[i] = fmt.Sprint(base, round, ":", i)
			}
			c, err := redislock.New(rdb, redislock.WithWheel(w))
			require.NoError(t, err)
			_, err = c.MultiMutex(names).TryLock(t.Context())
			require.NoError(t, err)
			require.NoError(t, c.Close(within(t, patience)))
			requireAllFree(t, rdb, names...)
		}
	})

	t.Run("an Owner that holds a part may lock all", func(t *testing.T) {
		t.Parallel()
		c, rdb, _ := onSharedServer(t)
		names := threeNames(t)
		ctx := redislock.ContextWithOwner(t.Context(), &redislock.Owner{})
		part, err := c.Mutex(names[1]).TryLock(ctx)
		require.NoError(t, err)
		whole, err := c.MultiMutex(names[:]).TryLock(ctx)
		require.NoError(t, err)
		mustUnlock(t, whole)
		require.True(t, part.Valid())
		requireAllFree(t, rdb, names[0], names[2])
		mustUnlock(t, part)
		requireAllFree(t, rdb, names[:]...)
	})

	// Guarantees: L46.
	t.Run("a part that the Owner also holds alone survives the loss of the whole", func(t *testing.T) {
		t.Parallel()
		c, rdb, _ := onSharedServer(t)
		names := threeNames(t)
		ctx := redislock.ContextWithOwner(t.Context(), &redislock.Owner{})
		part, err := c.Mutex(names[1]).TryLock(ctx)
		require.NoError(t, err)
		whole, err := c.MultiMutex(names[:], redislock.WithLease(safeLease)).TryLock(ctx)
		require.NoError(t, err)
		require.NoError(t, rdb.Del(t.Context(), names[0]).Err())
		<-whole.Done()
		poll(t, func() bool { return rdb.Exists(t.Context(), names[2]).Val() == 0 })
		require.ErrorIs(t, whole.Unlock(t.Context()), redislock.ErrLost)
		require.True(t, part.Valid())
		requireHeldOnce(t, rdb, names[1])
		mustUnlock(t, part)
		requireAllFree(t, rdb, names[:]...)
	})

	t.Run("refuses invalid names and options", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		for what, m := range map[string]*redislock.MultiMutex{
			"none":        c.MultiMutex(nil),
			"none, twice": c.MultiMutex(nil, redislock.WithLease(time.Second)), // short: refused
			"an empty":    c.MultiMutex([]string{name, ""}),
			"a bad":       c.MultiMutex([]string{name, "a{b"}),
			"twice":       c.MultiMutex([]string{name, name + "2", name}),
			"lease":       c.MultiMutex([]string{name}, redislock.WithLease(-1)),
			"fenced":      c.MultiMutex([]string{name}, redislock.WithFencing()),
			"nil option":  c.MultiMutex([]string{name}, nil),
		} {
			_, err := m.Lock(t.Context())
			require.ErrorIs(t, err, cogwheel.ErrInvalid, what)
			_, err = m.TryLock(t.Context())
			require.ErrorIs(t, err, cogwheel.ErrInvalid, what)
		}
		require.ErrorIs(t, c.MultiMutex([]string{name}).Do(t.Context(), nil), cogwheel.ErrInvalid)
		require.NoError(t, rdb.Set(t.Context(), name, "text", 0).Err())
		_, err := c.MultiMutex([]string{name, name + "2"}).TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrWrongKind)
		requireFree(t, rdb, name+"2")
		err = c.MultiMutex([]string{name + "2"}).Do(t.Context(), func(context.Context) error {
			return fmt.Errorf("f: %w", errWork)
		})
		require.ErrorIs(t, err, errWork)
		requireFree(t, rdb, name+"2")
	})
}

// multiTakesAllOrNone checks a MultiMutex wherever its parts are.
func multiTakesAllOrNone(t *testing.T, dep *deployment) {
	rdb, c, names := dep.rdb, newClient(t, dep.clients), threeNames(t)
	m := c.MultiMutex([]string{names[2], names[0], names[1]})
	require.Equal(t, names[:], m.Names())
	l, err := m.Lock(within(t, patience))
	require.NoError(t, err)
	require.Equal(t, names[0]+","+names[1]+","+names[2], l.Name())
	require.True(t, l.Valid())
	require.NoError(t, l.Err())
	require.InDelta(t, redislock.DefaultLease, time.Until(l.Deadline()), float64(5*time.Second))
	for _, name := range names {
		requireHeldOnce(t, rdb, name)
		_, err = newClient(t, dep.clients).Mutex(name).TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrLocked)
	}
	require.NoError(t, l.Extend(t.Context(), time.Minute))
	require.InDelta(t, time.Minute, time.Until(l.Deadline()), float64(5*time.Second))
	require.NoError(t, l.Unlock(t.Context()))
	require.ErrorIs(t, l.Err(), redislock.ErrNotHeld)
	require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrNotHeld)
	require.ErrorIs(t, l.Extend(t.Context(), time.Minute), redislock.ErrNotHeld)
	require.False(t, l.Valid())
	requireAllFree(t, rdb, names[:]...)

	held := mustLock(t, newClient(t, rdb).Mutex(names[1]))
	_, err = m.TryLock(t.Context())
	require.ErrorIs(t, err, redislock.ErrLocked)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err = m.Lock(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, redislock.ErrLocked)
	poll(t, func() bool { return rdb.Exists(t.Context(), names[0], names[2]).Val() == 0 }) // in the background
	waiting := callAsync(func() (*redislock.Lock, error) { return m.Lock(within(t, patience)) })
	poll(t, func() bool { return rdb.Exists(t.Context(), names[0]).Val() == 1 })
	mustUnlock(t, held)
	mustUnlock(t, waiting.await(t))
	requireAllFree(t, rdb, names[:]...)
}

// A part may be lost while the parts are joined. Unlock must still release the parts behind it, or their
// watchdogs would keep them.
// Guarantees: L30.
func TestMultiMutex_PartLostDuringAcquisition(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	parts := make([]*redislock.Lock, 500)
	for i := range parts {
		parts[i] = mustLock(t, c.Mutex(fmt.Sprintf("%s:%d", name, i)))
	}
	require.NoError(t, rdb.Del(t.Context(), parts[0].Name()).Err())
	require.ErrorIs(t, parts[0].Extend(t.Context(), time.Minute), redislock.ErrLost)

	whole := c.Join(parts...)
	<-whole.Done()
	require.ErrorIs(t, whole.Unlock(t.Context()), redislock.ErrLost)
	for _, part := range parts {
		require.Error(t, part.Err(), "%s is still held", part.Name())
		poll(t, func() bool { return rdb.Exists(t.Context(), part.Name()).Val() == 0 })
	}
}

// loading is a hook that answers as a server does that loads its data, in place of commands about a name.
type loading struct {
	name string
	left atomic.Int32 // commands to answer
}

func (l *loading) refuses(cmd redis.Cmder) bool {
	if !strings.Contains(fmt.Sprint(cmd.Args()...), l.name) || l.left.Add(-1) < 0 {
		return false
	}
	cmd.SetErr(refused("LOADING Redis is loading the dataset in memory"))
	return true
}

func (l *loading) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *loading) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if l.refuses(cmd) {
			return cmd.Err()
		}
		return next(ctx, cmd)
	}
}

func (l *loading) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if l.refuses(cmd) {
				return cmd.Err()
			}
		}
		return next(ctx, cmds)
	}
}

// A MultiMutex that has taken a part goes on through an outage; TryLock does not wait.
func TestMultiMutex_GoesOnThroughAnOutageOnceItHasAPart(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t, func(o *redis.Options) { o.MaxRetries = -1 })
	name := redistest.Name(t)
	outage := &loading{name: name + "2"}
	rdb.AddHook(outage)
	m := newClient(t, rdb, redislock.WithPoll(20*time.Millisecond)).MultiMutex([]string{name + "1", outage.name})
	outage.left.Store(3)
	mustUnlock(t, mustLock(t, m))
	outage.left.Store(3)
	calls, _ := startLockFunc(within(t, patience), m)
	mustUnlock(t, (<-calls).mustHold(t))
	outage.left.Store(3)
	_, err := m.TryLock(t.Context())
	require.ErrorContains(t, err, "LOADING")
	require.EqualValues(t, 2, outage.left.Load())
}
