package semaphore_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// Whichever of the two comes first, the permits are back when both have returned.
func TestGrant_ReleaseAgainstClose(t *testing.T) {
	suite(t, func(t *testing.T, leased leasedKind) {
		const rounds, grants = 300, 8
		rdb := redistest.Shared(t).Client(t)
		name := redistest.Name(t)
		watcher := leased.of(newClient(t, rdb), name)
		setLeased(t, watcher, grants)
		w := newWheel(t)
		for i := range rounds {
			c, err := semaphore.New(rdb, semaphore.WithWheel(w))
			require.NoError(t, err)
			l := leased.of(c, name)
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
				if err := c.Close(within(t, patience)); err != nil {
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

// A request that waited in the line of a fair semaphore is given up: what its process asks for next does not stand behind it.
func TestFair_AnAcquireThatWasCancelledIsNoLongerInTheWay(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	name := redistest.Name(t)
	other, l := newClient(t, rdb).FairLeased(name), newClient(t, rdb).FairLeased(name)
	setLeased(t, l, 2)
	held := mustAcquire(t, other, 1)
	for range 300 {
		ctx, cancel := context.WithCancel(t.Context())
		waiting := start(func() error { _, err := l.Acquire(ctx, 2); return err })
		poll(t, func() bool { return rdb.ZCard(t.Context(), scripts.SuffixName(name, "fair:queue")).Val() == 1 })
		cancel()
		require.ErrorIs(t, waiting.wait(t), context.Canceled)
		g, err := l.TryAcquire(t.Context(), 1)
		require.NoError(t, err)
		require.NoError(t, g.Release(t.Context()))
	}
	require.NoError(t, held.Release(t.Context()))
}

// Permits whose key was overwritten by another type were lost.
func TestGrant_AnOverwrittenKeyIsALoss(t *testing.T) {
	suite(t, func(t *testing.T, leased leasedKind) {
		c, rdb, name := shared(t)
		l := leased.of(c, name)
		setLeased(t, l, 1)
		g := mustAcquire(t, l, 1)
		key := scripts.SuffixName(name, "timeout")
		if leased.kind.name == "fair" {
			key = scripts.SuffixName(name, "fair:leases")
		}
		require.NoError(t, rdb.Del(t.Context(), key).Err())
		require.NoError(t, rdb.Set(t.Context(), key, "mine", time.Minute).Err())
		err := g.Release(t.Context())
		require.ErrorIs(t, err, semaphore.ErrLost)
		require.ErrorIs(t, err, semaphore.ErrWrongKind)
		require.Equal(t, "mine", rdb.Get(t.Context(), key).Val())
	})
}

// The first copy of a release was executed, and its reply lost; the second came when the lease was over.
func TestGrant_ReleaseConfirmedAfterTheLeaseIsNoLoss(t *testing.T) {
	suite(t, func(t *testing.T, leased leasedKind) {
		const lease = 600 * time.Millisecond
		server := redistest.Shared(t)
		d := &redistest.FaultDialer{}
		rdb := server.Client(t, func(o *redis.Options) { o.Dialer, o.ReadTimeout, o.MaxRetries = d.Dial, time.Second, 3 })
		name := redistest.Name(t)
		l := leased.of(newClient(t, rdb), name, semaphore.WithLease(lease), semaphore.WithoutRenewal())
		setLeased(t, leased.of(newClient(t, server.Client(t)), name), 1)
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

// A semaphore of one name is fair or it is not: the one that is set second is refused.
func TestLeased_FairAndPlainOfOneNameRefuseEachOther(t *testing.T) {
	t.Parallel()
	c, _, name := shared(t)
	plain, fair := c.Leased(name+":plain"), c.FairLeased(name+":fair")
	setLeased(t, plain, 1)
	setLeased(t, fair, 1)
	for _, second := range []*semaphore.Leased{c.FairLeased(plain.Name()), c.Leased(fair.Name())} {
		_, err := second.TrySetPermits(t.Context(), 1)
		require.ErrorIs(t, err, semaphore.ErrWrongKind)
		require.ErrorIs(t, second.SetPermits(t.Context(), 1), semaphore.ErrWrongKind)
		require.ErrorIs(t, second.AddPermits(t.Context(), 1), semaphore.ErrWrongKind)
		_, err = second.TryAcquire(t.Context(), 1)
		require.ErrorIs(t, err, semaphore.ErrNotSet)
	}
	_, err := c.Semaphore(fair.Name()).TrySetPermits(t.Context(), 1, 0)
	require.ErrorIs(t, err, semaphore.ErrWrongKind)
	require.EqualValues(t, 1, available(t, plain))
	require.EqualValues(t, 1, available(t, fair))
}
