package semaphore_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

func TestSemaphore_Permits(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		c, rdb, name := newSharedClient(t)
		l := k.newSemaphore(c, name, 0)
		ctx := t.Context()
		var g *semaphore.Grant
		for _, step := range []struct {
			name       string
			do         func() error
			free, held int64 // after it
		}{
			{"nothing is set", func() error { return nil }, 0, 0},
			{"TrySetPermits(5)", func() error { mustSetPermits(t, l, 5); return nil }, 5, 0},
			{"others set an expiry", func() error { return rdb.PExpire(ctx, k.permitsKey(name), time.Hour).Err() }, 5, 0},
			{"TrySetPermits(9) comes too late", func() error {
				ok, err := l.TrySetPermits(ctx, 9)
				require.False(t, ok)
				return err
			}, 5, 0},
			{"Acquire(3)", func() (err error) { g, err = l.Acquire(within(t, testTimeout), 3); return err }, 2, 3},
			{"SetPermits(10)", func() error { return l.SetPermits(ctx, 10) }, 7, 3},
			{"SetPermits(2) ends no grant", func() error { return l.SetPermits(ctx, 2) }, -1, 3},
			{"the grant is held", func() error { return g.Err() }, -1, 3},
			{"AddPermits(4)", func() error { return l.AddPermits(ctx, 4) }, 3, 3},
			{"AddPermits(-1)", func() error { return l.AddPermits(ctx, -1) }, 2, 3},
			{"Release", func() error { return g.Release(ctx) }, 5, 0},
		} {
			require.NoError(t, step.do(), step.name)
			require.Equal(t, step.free, available(t, l), step.name)
			state := stateOf(t, l)
			require.Equal(t, step.held, state.Held, step.name)
			require.Equal(t, step.free, state.Free, step.name)
		}
		require.Positive(t, rdb.PTTL(ctx, k.permitsKey(name)).Val(), "all of them keep the expiry")
	})
}

func TestSemaphore_Grant(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		c, _, name := newSharedClient(t)
		l := k.newSemaphore(c, name, 0)
		ctx := t.Context()
		mustSetPermits(t, l, 4)
		g := mustAcquire(t, l, 2)
		require.Len(t, g.IDs(), 2)
		for _, id := range g.IDs() {
			require.Len(t, id, 32)
			left := leaseTime(t, l, id)
			require.LessOrEqual(t, left, semaphore.DefaultLease)
			require.Greater(t, left, semaphore.DefaultLease-5*time.Second)
		}
		require.True(t, g.Valid())
		require.WithinDuration(t, time.Now().Add(semaphore.DefaultLease), g.Deadline(), 5*time.Second)
		work := g.Context(ctx)
		require.NoError(t, work.Err())

		second := mustAcquire(t, l, 1)
		require.Greater(t, second.Token(), g.Token())
		_, err := l.TryAcquire(ctx, 2)
		require.ErrorIs(t, err, semaphore.ErrNoPermits)

		require.NoError(t, g.Extend(ctx, time.Minute))
		require.Greater(t, leaseTime(t, l, g.IDs()[1]), 50*time.Second)
		require.ErrorIs(t, g.Extend(ctx, 0), cogwheel.ErrInvalid)

		require.NoError(t, g.Release(ctx))
		require.ErrorIs(t, g.Release(ctx), semaphore.ErrNotHeld, "releasing again does nothing")
		<-g.Done()
		<-work.Done()
		require.ErrorIs(t, context.Cause(work), semaphore.ErrNotHeld)
		require.ErrorIs(t, g.Err(), semaphore.ErrNotHeld)
		require.ErrorIs(t, g.Extend(ctx, time.Minute), semaphore.ErrNotHeld)
		require.False(t, g.Valid())
		require.EqualValues(t, 3, available(t, l))
		require.NoError(t, second.Release(ctx))

		none := mustAcquire(t, l, 0)
		require.Empty(t, none.IDs())
		require.True(t, none.Valid())
		require.NoError(t, none.Extend(ctx, time.Second))
		require.NoError(t, none.Release(ctx))
		<-none.Done()
	})
}

// Guarantees: S3, S4.
func TestSemaphore_IsRenewedAndLost(t *testing.T) {
	redistest.SkipIfShort(t)
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		c, rdb, name := newSharedClient(t)
		l := k.newSemaphore(c, name, 0, semaphore.WithLease(safeLease))
		mustSetPermits(t, l, 2)
		kept, lost := mustAcquire(t, l, 1), mustAcquire(t, l, 1)
		for _, g := range []*semaphore.Grant{kept, lost} { // renewed for longer than a lease
			until := g.Deadline().Add(safeLease)
			poll(t, func() bool { return g.Err() != nil || g.Deadline().After(until) })
			require.NoError(t, g.Err())
		}
		require.EqualValues(t, 0, available(t, l))

		require.NoError(t, l.ReleaseIDs(t.Context(), lost.IDs()...)) // another client releases it
		<-lost.Done()
		require.ErrorIs(t, lost.Err(), semaphore.ErrLost)
		require.ErrorIs(t, lost.Release(t.Context()), semaphore.ErrLost)
		require.EqualValues(t, 1, available(t, l), "counted once")
		require.NoError(t, kept.Err())
		require.NoError(t, kept.Release(t.Context()))
		require.EqualValues(t, 2, available(t, l))
		require.NoError(t, rdb.Ping(t.Context()).Err())
	})
}

func TestSemaphore_WithoutRenewal(t *testing.T) {
	redistest.SkipIfShort(t)
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		const lease = 3 * time.Second // short: its end is awaited
		c, _, name := newSharedClient(t)
		l := k.newSemaphore(c, name, 0, semaphore.WithLease(lease), semaphore.WithoutRenewal())
		mustSetPermits(t, l, 1)
		began := time.Now()
		g := mustAcquire(t, l, 1)
		next := mustAcquire(t, l, 1) // waits for the first one to expire
		took := time.Since(began)
		require.GreaterOrEqual(t, took, lease)
		require.Less(t, took, lease+wakeLimit)
		require.False(t, g.Valid(), "over before the next grant")
		<-g.Done()
		require.ErrorIs(t, g.Err(), semaphore.ErrLost)
		require.Less(t, g.Deadline().Sub(began), took)
		require.ErrorIs(t, g.Release(t.Context()), semaphore.ErrLost)
		require.Greater(t, next.Token(), g.Token())
		require.NoError(t, next.Extend(t.Context(), 2*lease))
		w := newWheel(t)
		require.NoError(t, w.Sleep(t.Context(), lease+100*time.Millisecond)) // the lease of its request ends
		require.NoError(t, next.Err(), "extended")
		require.NoError(t, next.Release(t.Context()))
		require.EqualValues(t, 1, available(t, l))
	})
}

// Guarantees: S6.
func TestSemaphore_Waits(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		c, rdb, name := newSharedClient(t)
		other := k.newSemaphore(newClient(t, redistest.Shared(t).Client(t)), name, 0)
		l := k.newSemaphore(c, name, 0)
		mustSetPermits(t, l, 2)
		g := mustAcquire(t, other, 2)
		var grants [2]*semaphore.Grant
		var calls [2]*asyncCall
		for i := range calls {
			calls[i] = startCall(func() (err error) { grants[i], err = l.Acquire(within(t, testTimeout), 1); return err })
		}
		k.awaitWaiting(t, rdb, name, 1)
		require.False(t, calls[0].ended() || calls[1].ended())
		stalled, began := redistest.Stalls(t), time.Now()
		require.NoError(t, g.Release(t.Context()))
		for i := range calls {
			require.NoError(t, calls[i].wait(t))
			require.NoError(t, grants[i].Release(t.Context()))
		}
		require.Less(t, time.Since(began)-stalled(), wakeLimit)
		require.EqualValues(t, 2, available(t, l))

		got := make(chan *semaphore.Grant, 1)
		l.AcquireFunc(t.Context(), 2, func(g *semaphore.Grant, err error) {
			if err != nil {
				t.Error(err)
			}
			got <- g
		})
		g = <-got
		cancelled := make(chan error, 2)
		cancel := l.AcquireFunc(t.Context(), 1, func(g *semaphore.Grant, err error) {
			if g != nil {
				t.Error("granted")
			}
			cancelled <- err
		})
		cancel()
		cancel()
		require.ErrorIs(t, <-cancelled, context.Canceled)
		_, err := l.Acquire(within(t, 50*time.Millisecond), 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, g.Release(t.Context()))
		poll(t, func() bool { return available(t, l) == 2 })
		require.Empty(t, cancelled, "called once")
	})
}

// Guarantees: S1.
func TestSemaphore_Excludes(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		const clients, times, permits = 6, 15, 3
		server, name := redistest.Shared(t), redistest.Name(t)
		l := k.newSemaphore(newClient(t, server.Client(t)), name, 0)
		mustSetPermits(t, l, permits)
		var held, violations atomic.Int64
		var all sync.WaitGroup
		for i := range clients {
			l := k.newSemaphore(newClient(t, server.Client(t)), name, 0)
			all.Go(func() {
				for k := range times {
					n := int64(1 + (i+k)%permits)
					g, err := l.Acquire(t.Context(), n)
					if err != nil {
						t.Error(err)
						return
					}
					if held.Add(n) > permits {
						violations.Add(1)
					}
					held.Add(-n)
					if err := g.Release(t.Context()); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		require.Zero(t, violations.Load())
		require.EqualValues(t, permits, available(t, l))
	})
}

func TestSemaphore_ReleaseByID(t *testing.T) {
	t.Parallel()
	c, _, name := newSharedClient(t)
	l := c.Semaphore(name, 0, semaphore.WithoutRenewal())
	mustSetPermits(t, l, 3)
	g := mustAcquire(t, l, 3)
	ids := g.IDs()
	require.ErrorIs(t, l.ReleaseIDs(t.Context(), ids[0], ids[0]), semaphore.ErrNotHeld, "twice")
	require.Zero(t, available(t, l))
	require.NoError(t, l.ReleaseIDs(t.Context(), ids[0]))
	require.ErrorIs(t, l.ReleaseIDs(t.Context(), ids...), semaphore.ErrNotHeld, "all or nothing")
	require.EqualValues(t, 1, available(t, l))
	require.NoError(t, l.ReleaseIDs(t.Context(), ids[1:]...))
	require.EqualValues(t, 3, available(t, l))
	require.ErrorIs(t, l.ReleaseIDs(t.Context(), ids[0]), semaphore.ErrNotHeld)
	require.NoError(t, l.ReleaseIDs(t.Context()))
	require.ErrorIs(t, g.Release(t.Context()), semaphore.ErrLost, "released by their ids")
}
