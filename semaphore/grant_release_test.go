package semaphore_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/clock/clocktest"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// When Release and Close have returned, in any order, all permits are free.
// Guarantees: S13.
func TestGrant_ReleaseDuringClose(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		const rounds, grants = 300, 8
		rdb := redistest.Shared(t).Client(t)
		name := redistest.Name(t)
		watcher := k.newSemaphore(newClient(t, rdb), name, 0)
		mustSetPermits(t, watcher, grants)
		w := newWheel(t)
		for i := range rounds {
			c, err := semaphore.New(rdb, semaphore.WithWheel(w))
			require.NoError(t, err)
			l := k.newSemaphore(c, name, 0)
			var held [grants]*semaphore.Grant
			for i := range held {
				held[i] = mustAcquire(t, l, 1)
			}
			var both sync.WaitGroup
			for _, g := range held {
				both.Go(func() {
					if err := g.Release(t.Context()); err != nil {
						require.ErrorIs(t, err, semaphore.ErrClosed)
					}
				})
			}
			both.Go(func() {
				if err := c.Close(within(t, testTimeout)); err != nil {
					t.Error(err)
				}
			})
			both.Wait()
			for _, g := range held {
				require.Error(t, g.Err())
			}
			require.EqualValues(t, grants, available(t, watcher), "round %d", i)
		}
	})
}

// Permits whose key was overwritten are lost.
// Guarantees: S12.
func TestGrant_AnOverwrittenKeyIsALoss(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		c, rdb, name := newSharedClient(t)
		l := k.newSemaphore(c, name, 0)
		mustSetPermits(t, l, 1)
		g := mustAcquire(t, l, 1)
		key := k.leasesKey(name)
		require.NoError(t, rdb.Del(t.Context(), key).Err())
		require.NoError(t, rdb.Set(t.Context(), key, "mine", time.Minute).Err())
		err := g.Release(t.Context())
		require.ErrorIs(t, err, semaphore.ErrLost)
		require.ErrorIs(t, err, semaphore.ErrWrongKind)
		require.Equal(t, "mine", rdb.Get(t.Context(), key).Val())
	})
}

// The first copy of a release is executed and its reply lost; the second arrives after the end of the
// lease.
// Guarantees: S12.
func TestGrant_ReleaseConfirmedAfterTheLeaseIsNoLoss(t *testing.T) {
	redistest.SkipIfShort(t)
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		const lease = 3 * time.Second // short: its end is awaited
		server := redistest.Shared(t)
		d := &redistest.FaultDialer{}
		rdb := server.Client(t, func(o *redis.Options) {
			o.Dialer, o.ReadTimeout, o.MaxRetries = d.Dial, lease+time.Second/2, 3
		})
		name := redistest.Name(t)
		l := k.newSemaphore(newClient(t, rdb), name, 0, semaphore.WithLease(lease), semaphore.WithoutRenewal())
		mustSetPermits(t, k.newSemaphore(newClient(t, server.Client(t)), name, 0), 1)
		require.NoError(t, mustAcquire(t, l, 1).Release(t.Context())) // the server knows the scripts
		g := mustAcquire(t, l, 1)
		lost := d.LoseReply(name, 1, redistest.Swallow)
		require.True(t, g.Valid())
		began := time.Now()
		require.NoError(t, g.Release(t.Context()))
		require.Greater(t, time.Since(began), lease)
		<-lost
	})
}

// A process stands still until its lease is over, and then releases. The permits were lost before, whether the answer
// comes at once or the call is repeated.
func TestGrant_ReleaseAfterTheLeaseIsALoss(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		for _, loses := range []bool{false, true} {
			w, err := wheel.New(wheel.WithClock(clocktest.Late(4 * time.Second)))
			require.NoError(t, err)
			t.Cleanup(func() {
				_, err := w.Stop(context.Background())
				require.NoError(t, err)
			})
			server, d := redistest.Shared(t), &redistest.FaultDialer{}
			rdb := server.Client(t, func(o *redis.Options) { o.Dialer, o.MaxRetries = d.Dial, 3 })
			name, other := redistest.Name(t), server.Client(t)
			l := k.newSemaphore(newClient(t, rdb, semaphore.WithWheel(w)), name, 0, semaphore.WithLease(time.Second), semaphore.WithoutRenewal())
			mustSetPermits(t, l, 1)
			g := mustAcquire(t, l, 1)
			next := mustAcquire(t, k.newSemaphore(newClient(t, other), name, 0), 1)
			if loses {
				d.LoseReply(name, 1, redistest.Cut)
			}
			require.ErrorIs(t, g.Release(t.Context()), semaphore.ErrLost, "the reply is lost: %v", loses)
			require.NoError(t, next.Release(t.Context()))
		}
	})
}

// A nil or zero Grant is not held; its methods neither panic nor talk to Redis.
func TestGrant_NilAndZeroAreNotHeld(t *testing.T) {
	t.Parallel()
	var none *semaphore.Grant
	for what, g := range map[string]*semaphore.Grant{"nil": none, "zero": {}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			require.False(t, g.Valid())
			require.ErrorIs(t, g.Err(), semaphore.ErrNotHeld)
			require.Empty(t, g.IDs())
			require.Zero(t, g.Token())
			require.True(t, g.Deadline().IsZero())
			<-g.Done()
			ctx := g.Context(t.Context())
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), semaphore.ErrNotHeld)
			require.ErrorIs(t, g.Extend(t.Context(), time.Minute), semaphore.ErrNotHeld)
			require.ErrorIs(t, g.Release(t.Context()), semaphore.ErrNotHeld)
			require.ErrorIs(t, g.Release(nil), semaphore.ErrNotHeld) //nolint:staticcheck // on purpose
		})
	}
}
