package redislock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// Guarantees: L30.
func TestMultiMutex_LockFunc(t *testing.T) {
	t.Parallel()
	onEachDeploymentWithThreeNames(t, map[string]func(*testing.T, redis.UniversalClient, [3]string){
		"calls back with the lock, at once or when the last name is free": callsBackWithAllNames,
		"cancelled before the grant, calls back once and frees its parts": cancelFreesTheParts,
		"cancelled at each grant, leaves no keys":                         cancelAtEachGrantLeavesNoKeys,
		"cancelled at any moment, calls back once and leaves no keys": func(
			t *testing.T, rdb redis.UniversalClient, names [3]string,
		) {
			requireCancelledCleanly(t, newClient(t, rdb).MultiMutex(names[:]), 150)
			requireAllFree(t, rdb, names[:]...)
		},
		"Close ends it and frees its parts": closeEndsLockFunc,
		"ends with its context": func(t *testing.T, rdb redis.UniversalClient, names [3]string) {
			held := mustLock(t, newClient(t, rdb).Mutex(names[1]))
			m := newClient(t, rdb).MultiMutex(names[:])
			calls, _ := startLockFunc(within(t, 3*time.Second), m) // long enough to ask each name once
			c := <-calls
			require.ErrorIs(t, c.err, context.DeadlineExceeded)
			require.ErrorIs(t, c.err, redislock.ErrLocked)
			requireAllFree(t, rdb, names[0], names[2])
			mustUnlock(t, held)
			ended, cancel := context.WithCancelCause(t.Context())
			cancel(errWork)
			calls, _ = startLockFunc(ended, m)
			c = <-calls
			require.ErrorIs(t, c.err, context.Canceled)
			require.ErrorIs(t, c.err, errWork)
			requireAllFree(t, rdb, names[:]...)
		},
	})

	t.Run("acquires parts again whose leases ended during the wait", func(t *testing.T) {
		skipIfShort(t)
		t.Parallel()
		c, rdb, _ := onSharedServer(t)
		names := threeNames(t)
		writeHold(t, rdb, names[2], 3500*time.Millisecond)
		calls, _ := startLockFunc(
			t.Context(), c.MultiMutex(names[:], redislock.WithLease(3*time.Second), redislock.WithoutRenewal()),
		)
		mustUnlock(t, (<-calls).mustHold(t))
		requireAllFree(t, rdb, names[:]...)
	})

	t.Run("an Owner that holds a part acquires the rest", func(t *testing.T) {
		t.Parallel()
		c, rdb, _ := onSharedServer(t)
		names := threeNames(t)
		ctx := redislock.ContextWithOwner(t.Context(), &redislock.Owner{})
		part, err := c.Mutex(names[1]).TryLock(ctx)
		require.NoError(t, err)
		calls, _ := startLockFunc(ctx, c.MultiMutex(names[:]))
		mustUnlock(t, (<-calls).mustHold(t))
		require.True(t, part.Valid())
		mustUnlock(t, part)
		requireAllFree(t, rdb, names[:]...)
	})

	t.Run("reports invalid arguments", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		require.Panics(t, func() { c.MultiMutex([]string{name}).LockFunc(t.Context(), nil) })
		require.NoError(t, rdb.Set(t.Context(), name, "text", 0).Err())
		for want, m := range map[error]*redislock.MultiMutex{
			cogwheel.ErrInvalid: c.MultiMutex([]string{name, ""}), redislock.ErrWrongKind: c.MultiMutex(
				[]string{name, name + "2"},
			),
		} {
			calls, cancel := startLockFunc(t.Context(), m)
			r := <-calls
			require.Nil(t, r.lock)
			require.ErrorIs(t, r.err, want)
			cancel() // too late
		}
		var none context.Context
		calls, _ := startLockFunc(none, c.MultiMutex([]string{name}))
		require.ErrorIs(t, (<-calls).err, cogwheel.ErrInvalid)
		requireFree(t, rdb, name+"2")
	})
}

func callsBackWithAllNames(t *testing.T, rdb redis.UniversalClient, names [3]string) {
	m := newClient(t, rdb).MultiMutex([]string{names[2], names[0], names[1]})
	calls, cancel := startLockFunc(t.Context(), m)
	l := (<-calls).mustHold(t)
	cancel() // too late
	require.True(t, l.Valid())
	require.Equal(t, names[0]+","+names[1]+","+names[2], l.Name())
	others := newClient(t, rdb)
	for _, name := range names {
		requireHeldOnce(t, rdb, name)
		_, err := others.Mutex(name).TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrLocked)
	}
	mustUnlock(t, l)
	requireAllFree(t, rdb, names[:]...)

	var held []*redislock.Lock
	for _, name := range names {
		held = append(held, mustLock(t, others.Mutex(name)))
	}
	calls, _ = startLockFunc(t.Context(), m)
	for i, l := range held {
		require.Empty(t, calls)
		before := requireHeldOnce(t, rdb, names[i])
		mustUnlock(t, l)
		awaitHeld(t, rdb, names[i])
		require.NotEqual(t, before, requireHeldOnce(t, rdb, names[i]))
	}
	l = (<-calls).mustHold(t)
	require.NoError(t, l.Extend(t.Context(), time.Minute))
	mustUnlock(t, l)
	require.Empty(t, calls)
	requireAllFree(t, rdb, names[:]...)
}

func cancelFreesTheParts(t *testing.T, rdb redis.UniversalClient, names [3]string) {
	waits := make(chan struct{})
	var once sync.Once
	c := newClient(t, rdb, redislock.WithHooks(redislock.Hooks{Contended: func(e redislock.Event) {
		if e.Name == names[2] {
			once.Do(func() { close(waits) })
		}
	}}))
	held := mustLock(t, newClient(t, rdb).Mutex(names[2]))
	calls, cancel := startLockFunc(t.Context(), c.MultiMutex(names[:]))
	<-waits // the client knows that it holds the other names
	awaitHeld(t, rdb, names[0], names[1])
	cancel()
	cancel()
	r := <-calls
	require.Nil(t, r.lock)
	require.ErrorIs(t, r.err, context.Canceled)
	requireAllFree(t, rdb, names[0], names[1])
	mustUnlock(t, held)
	require.NoError(t, c.Close(t.Context()))
	require.Empty(t, calls)
	requireAllFree(t, rdb, names[:]...)
}

// cancelAtEachGrantLeavesNoKeys cancels after Redis has granted the n-th name and before the library learns
// of it.
func cancelAtEachGrantLeavesNoKeys(t *testing.T, rdb redis.UniversalClient, names [3]string) {
	atGrant := &replyHook{}
	rdb.AddHook(atGrant)
	m := newClient(t, rdb).MultiMutex(names[:])
	calls, _ := startLockFunc(t.Context(), m)
	mustUnlock(t, (<-calls).mustHold(t)) // loads the scripts
	for n := 1; n <= len(names); n++ {
		ctx, cancel := context.WithCancel(t.Context())
		atGrant.runAfterReply(n, cancel)
		calls, _ := startLockFunc(ctx, m)
		r := <-calls
		switch {
		case r.err != nil:
			require.ErrorIs(t, r.err, context.Canceled)
		default:
			require.Equal(t, len(names), n, "only the last grant may win over the cancellation")
			mustUnlock(t, r.mustHold(t))
		}
		for _, name := range names {
			poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
		}
		require.Empty(t, calls)
	}
}

func closeEndsLockFunc(t *testing.T, rdb redis.UniversalClient, names [3]string) {
	c, others := newClient(t, rdb), newClient(t, rdb)
	held := mustLock(t, others.Mutex(names[2]))
	m := c.MultiMutex(names[:])
	first, _ := startLockFunc(t.Context(), m)
	awaitHeld(t, rdb, names[0], names[1])
	second, cancel := startLockFunc(t.Context(), m) // waits for the first name
	require.NoError(t, c.Close(within(t, patience)))
	requireAllFree(t, rdb, names[0], names[1])
	cancel() // too late
	third, _ := startLockFunc(t.Context(), m)
	for _, calls := range []<-chan callback{first, second, third} {
		r := <-calls
		require.Nil(t, r.lock)
		require.ErrorIs(t, r.err, redislock.ErrClosed)
		require.Empty(t, calls)
	}
	mustUnlock(t, held)
	requireAllFree(t, rdb, names[:]...)
}
