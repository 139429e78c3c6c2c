package redislock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// Guarantees: L46.
func TestMutex_ContextWithOwner(t *testing.T) {
	t.Parallel()

	t.Run("an Owner enters again without a round trip and unlocks as often", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.Shared(t).Client(t)
		c, count := newCountedClient(t, rdb)
		name := redistest.Name(t)
		m := c.Mutex(name)
		ctx := redislock.ContextWithOwner(t.Context(), &redislock.Owner{})
		first, err := m.Lock(ctx)
		require.NoError(t, err)
		asked := count.scriptCalls()
		again, err := m.Lock(ctx)
		require.NoError(t, err)
		tried, err := c.Mutex(name).TryLock(ctx)
		require.NoError(t, err)
		require.NoError(t, m.Do(ctx, func(context.Context) error { return nil }))
		require.Equal(t, asked, count.scriptCalls())
		requireHeldOnce(t, rdb, name)

		for _, l := range []*redislock.Lock{again, first} { // in any order
			require.True(t, tried.Valid())
			require.NoError(t, l.Unlock(ctx))
			require.NotEmpty(t, requireHeldOnce(t, rdb, name))
		}
		require.NoError(t, tried.Unlock(ctx))
		requireFree(t, rdb, name)
		for _, l := range []*redislock.Lock{first, again, tried} {
			require.ErrorIs(t, l.Unlock(ctx), redislock.ErrNotHeld)
		}
		next, err := m.Lock(ctx)
		require.NoError(t, err)
		require.NoError(t, next.Unlock(ctx))
	})

	t.Run("each Lock of a hold is unlocked once and changes no other", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		ctx := redislock.ContextWithOwner(t.Context(), &redislock.Owner{})
		outer, err := c.Mutex(name).Lock(ctx)
		require.NoError(t, err)
		inner, err := c.Mutex(name).Lock(ctx)
		require.NoError(t, err)
		outerCtx, innerCtx := outer.Context(t.Context()), inner.Context(t.Context())
		require.NoError(t, inner.Unlock(ctx))
		<-inner.Done()
		<-innerCtx.Done()
		require.ErrorIs(t, context.Cause(innerCtx), redislock.ErrNotHeld)
		require.ErrorIs(t, inner.Err(), redislock.ErrNotHeld)
		require.False(t, inner.Valid())
		for range 3 {
			require.ErrorIs(t, inner.Unlock(ctx), redislock.ErrNotHeld)
			require.ErrorIs(t, inner.Extend(ctx, time.Minute), redislock.ErrNotHeld)
		}
		require.NoError(t, outer.Err())
		require.NoError(t, outerCtx.Err())
		require.True(t, outer.Valid())
		require.False(t, isClosed(outer.Done()))
		requireHeldOnce(t, rdb, name)
		require.NoError(t, outer.Extend(ctx, time.Minute))
		require.NoError(t, outer.Unlock(ctx))
		<-outerCtx.Done()
		requireFree(t, rdb, name)
	})

	t.Run("a loss ends all Locks; the Owner can lock again after it has unlocked all", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		ctx := redislock.ContextWithOwner(within(t, patience), &redislock.Owner{})
		lease := redislock.WithLease(safeLease)
		outer, err := c.Mutex(name, lease).Lock(ctx)
		require.NoError(t, err)
		inner, err := c.Mutex(name, lease).Lock(ctx)
		require.NoError(t, err)
		require.NoError(t, rdb.Del(t.Context(), name).Err())
		<-inner.Done()
		<-outer.Done()
		for _, l := range []*redislock.Lock{inner, outer} {
			_, err = c.Mutex(name, lease).Lock(ctx)
			require.ErrorIs(t, err, redislock.ErrLost)
			require.ErrorIs(t, l.Err(), redislock.ErrLost)
			require.ErrorIs(t, l.Unlock(ctx), redislock.ErrLost)
			require.ErrorIs(t, l.Err(), redislock.ErrLost)
		}
		next, err := c.Mutex(name, lease).Lock(ctx)
		require.NoError(t, err)
		require.NoError(t, next.Unlock(ctx))
	})
}

// A Mutex and a FairMutex of one name are one lock, also for an Owner.
// Guarantees: L46.
func TestOwner_MutexAndFairMutexOfOneNameAreOneLock(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	ctx := redislock.ContextWithOwner(within(t, patience), &redislock.Owner{})
	for _, order := range [][2]*redislock.Mutex{
		{c.Mutex(name), c.FairMutex(name)}, {c.FairMutex(name), c.Mutex(name)},
	} {
		outer, err := order[0].Lock(ctx)
		require.NoError(t, err)
		inner, err := order[1].Lock(ctx)
		require.NoError(t, err)
		mustUnlock(t, inner, outer)
		requireFree(t, rdb, name)
	}
}

func TestMutex_NestedWithoutAnOwnerWaitsUntilItsContextEnds(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	m := c.Mutex(name)
	err := m.Do(t.Context(), func(context.Context) error {
		inner := m.Do(within(t, 2*time.Second), func(context.Context) error { return nil })
		require.ErrorIs(t, inner, context.DeadlineExceeded)
		require.ErrorIs(t, inner, redislock.ErrLocked)
		return nil
	})
	require.NoError(t, err)
	requireFree(t, rdb, name)
}

// Guarantees: L46.
func TestRWMutex_ContextWithOwner(t *testing.T) {
	t.Parallel()
	onEachDeployment(t, ownerReadsAndWrites)
}

func ownerReadsAndWrites(t *testing.T, dep *deployment) {
	c, rdb, name := newClient(t, dep.rdb), dep.rdb, redistest.Name(t)
	rw := c.RWMutex(name)
	ctx := redislock.ContextWithOwner(within(t, patience), &redislock.Owner{})

	w, err := rw.Lock(ctx)
	require.NoError(t, err)
	inner, err := rw.RLock(ctx)
	require.NoError(t, err)
	require.True(t, inner.Valid(), "the writer may read as well")
	_, err = rw.Downgrade(ctx, w)
	require.ErrorIs(t, err, cogwheel.ErrInvalid)
	require.NoError(t, inner.Unlock(ctx))
	require.True(t, w.Valid(), "the inner RUnlock did not release the writer")
	r, err := rw.Downgrade(ctx, w)
	require.NoError(t, err)

	again, err := rw.RLock(ctx)
	require.NoError(t, err)
	_, err = rw.Lock(ctx)
	require.ErrorIs(t, err, redislock.ErrUpgrade)
	_, err = rw.TryLock(ctx)
	require.ErrorIs(t, err, redislock.ErrUpgrade)
	mustUnlock(t, r, again)
	requireFree(t, rdb, name)
	w, err = rw.Lock(ctx)
	require.NoError(t, err)
	mustUnlock(t, w)
}
