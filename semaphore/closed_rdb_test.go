package semaphore_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// A service that closes the redis client too early must not keep its permits for the rest of their lease.
func TestGrant_IsReleasedAlthoughRdbIsClosed(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		hold := func(t *testing.T) (*semaphore.Client, *redis.Client, *semaphore.Grant, *semaphore.Semaphore) {
			server := redistest.Shared(t)
			rdb, name := server.Client(t), redistest.Name(t)
			c := newClient(t, rdb)
			s := k.newSemaphore(c, name, 0, semaphore.WithLease(safeLease))
			mustSetPermits(t, s, 1)
			g := mustAcquire(t, s, 1)
			require.NoError(t, rdb.Close())
			return c, rdb, g, k.newSemaphore(newClient(t, server.Client(t)), name, 0)
		}
		t.Run("by Close", func(t *testing.T) {
			t.Parallel()
			c, _, _, other := hold(t)
			require.NoError(t, c.Close(t.Context()))
			require.EqualValues(t, 1, available(t, other))
		})
		t.Run("by Release", func(t *testing.T) {
			t.Parallel()
			_, _, g, other := hold(t)
			require.ErrorIs(t, g.Release(t.Context()), redis.ErrClosed)
			poll(t, func() bool { return available(t, other) == 1 })
		})
	})
}
