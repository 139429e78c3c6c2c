package redislock_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// onEachTopology runs checks on one server, and on a cluster with each of three names on another master.
func onEachDeploymentWithThreeNames(t *testing.T, checks map[string]func(t *testing.T, rdb redis.UniversalClient, names [3]string)) {
	t.Helper()
	cluster := redistest.StartCluster(t)
	for what, check := range checks {
		t.Run("on one server it "+what, func(t *testing.T) {
			t.Parallel()
			check(t, redistest.Shared(t).Client(t), threeNames(t))
		})
		t.Run("in a cluster it "+what, func(t *testing.T) {
			t.Parallel()
			check(t, cluster.Client(t), namesOnThreeMasters(t, cluster))
		})
	}
}

func namesOnThreeMasters(t testing.TB, cluster *redistest.Cluster) [3]string {
	t.Helper()
	names := make(map[*redistest.Server]string)
	for len(names) < 3 {
		name := redistest.Name(t)
		names[cluster.Owner(t, name)] = name
	}
	var all []string
	for _, name := range names {
		all = append(all, name)
	}
	slices.Sort(all)
	return [3]string(all)
}

// awaitHeld returns when somebody holds each of the names.
func awaitHeld(t testing.TB, rdb redis.UniversalClient, names ...string) {
	t.Helper()
	for _, name := range names {
		poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 1 })
	}
}

func TestMultiMutex_LockFunc(t *testing.T) {
	t.Parallel()
	onEachDeploymentWithThreeNames(t, map[string]func(*testing.T, redis.UniversalClient, [3]string){
		"calls back with the lock, at once or when the last name is free": callsBackWithTheWhole,
		"cancelled in time calls back once, and frees its parts":          cancelledFreesItsParts,
		"cancelled at the instant of a grant keeps nothing":               cancelledAtEachGrant,
		"cancelled at any instant calls back once and keeps nothing": func(t *testing.T, rdb redis.UniversalClient, names [3]string) {
			requireCancelledCleanly(t, newClient(t, rdb).MultiMutex(names[:]), 150)
			requireAllFree(t, rdb, names[:]...)
		},
		"ends with the Client, which frees its parts": closeEndsTheCallback,
		"ends with its context": func(t *testing.T, rdb redis.UniversalClient, names [3]string) {
			held := mustLock(t, newClient(t, rdb).Mutex(names[1]))
			m := newClient(t, rdb).MultiMutex(names[:])
			calls, _ := startLockFunc(within(t, 200*time.Millisecond), m)
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

	t.Run("parts that end while it waits for another are taken anew", func(t *testing.T) {
		t.Parallel()
		c, rdb, _ := onSharedServer(t)
		names := threeNames(t)
		writeHold(t, rdb, names[2], 1500*time.Millisecond)
		calls, _ := startLockFunc(t.Context(), c.MultiMutex(names[:], redislock.WithLease(time.Second), redislock.WithoutRenewal()))
		mustUnlock(t, (<-calls).mustHold(t))
		requireAllFree(t, rdb, names[:]...)
	})

	t.Run("an owner of a part gets the whole", func(t *testing.T) {
		t.Parallel()
		c, rdb, _ := onSharedServer(t)
		names := threeNames(t)
		ctx := redislock.WithOwner(t.Context(), &redislock.Owner{})
		part, err := c.Mutex(names[1]).TryLock(ctx)
		require.NoError(t, err)
		calls, _ := startLockFunc(ctx, c.MultiMutex(names[:]))
		mustUnlock(t, (<-calls).mustHold(t))
		require.True(t, part.Valid())
		mustUnlock(t, part)
		requireAllFree(t, rdb, names[:]...)
	})

	t.Run("tells what is wrong with its arguments", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		require.Panics(t, func() { c.MultiMutex([]string{name}).LockFunc(t.Context(), nil) })
		require.NoError(t, rdb.Set(t.Context(), name, "text", 0).Err())
		for want, m := range map[error]*redislock.MultiMutex{
			redislock.ErrInvalid: c.MultiMutex([]string{name, ""}), redislock.ErrWrongKind: c.MultiMutex([]string{name, name + "2"}),
		} {
			calls, cancel := startLockFunc(t.Context(), m)
			r := <-calls
			require.Nil(t, r.lock)
			require.ErrorIs(t, r.err, want)
			cancel() // too late
		}
		var none context.Context
		calls, _ := startLockFunc(none, c.MultiMutex([]string{name}))
		require.ErrorIs(t, (<-calls).err, redislock.ErrInvalid)
		requireFree(t, rdb, name+"2")
	})
}

func callsBackWithTheWhole(t *testing.T, rdb redis.UniversalClient, names [3]string) {
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

func cancelledFreesItsParts(t *testing.T, rdb redis.UniversalClient, names [3]string) {
	c := newClient(t, rdb)
	held := mustLock(t, newClient(t, rdb).Mutex(names[2]))
	calls, cancel := startLockFunc(t.Context(), c.MultiMutex(names[:]))
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

// cancelledAtEachGrant cancels when Redis has granted the n-th name and the library is about to learn of it.
func cancelledAtEachGrant(t *testing.T, rdb redis.UniversalClient, names [3]string) {
	atGrant := &replyHook{}
	rdb.AddHook(atGrant)
	m := newClient(t, rdb).MultiMutex(names[:])
	calls, _ := startLockFunc(t.Context(), m)
	mustUnlock(t, (<-calls).mustHold(t)) // the scripts are known
	for n := 1; n <= len(names); n++ {
		ctx, cancel := context.WithCancel(t.Context())
		atGrant.runAfterReply(n, cancel)
		calls, _ := startLockFunc(ctx, m)
		r := <-calls
		switch {
		case r.err != nil:
			require.ErrorIs(t, r.err, context.Canceled)
		default:
			require.Equal(t, len(names), n, "there were more names to get")
			mustUnlock(t, r.mustHold(t))
		}
		for _, name := range names {
			poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
		}
		require.Empty(t, calls)
	}
}

func closeEndsTheCallback(t *testing.T, rdb redis.UniversalClient, names [3]string) {
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
