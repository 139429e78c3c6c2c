package semaphore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// Whatever becomes of an Extend, a grant is not valid for longer than Redis keeps its permits.
// Guarantees: S5.
func TestGrant_Extend(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		t.Run("its reply is lost: Redis keeps the permits for as long as the grant is valid", func(t *testing.T) {
			c, d, rdb := newFaultyClient(t, redistest.Shared(t), -1)
			name := redistest.Name(t)
			l, other := k.newSemaphore(c, name, 0), k.newSemaphore(newClient(t, rdb), name, 0)
			mustSetPermits(t, other, 1)
			g := mustAcquire(t, l, 1)
			lost := d.LoseReply(scripts.PermitRenew.SHA(), 1, redistest.Cut)
			require.Error(t, g.Extend(t.Context(), 50*time.Millisecond))
			<-lost
			require.NoError(t, newWheel(t).Sleep(t.Context(), 200*time.Millisecond))
			require.True(t, g.Valid(), "by the earlier lease")
			_, err := other.TryAcquire(t.Context(), 1)
			require.ErrorIs(t, err, semaphore.ErrNoPermits)
			require.NoError(t, g.Release(t.Context()))
		})

		t.Run("to a shorter time: the lease stays", func(t *testing.T) {
			c, _, rdb := newFaultyClient(t, redistest.Shared(t), -1)
			name := redistest.Name(t)
			l, other := k.newSemaphore(c, name, 0), k.newSemaphore(newClient(t, rdb), name, 0)
			mustSetPermits(t, other, 1)
			g := mustAcquire(t, l, 1)
			before := g.Deadline()
			require.NoError(t, g.Extend(t.Context(), time.Millisecond))
			require.False(t, g.Deadline().Before(before))
			require.NoError(t, g.Err())
			require.True(t, g.Valid())
			require.Greater(t, leaseTime(t, other, g.IDs()[0]), semaphore.DefaultLease/2)
			require.NoError(t, g.Release(t.Context()))
		})

		t.Run("of permits whose key was overwritten: they are lost", func(t *testing.T) {
			c, rdb, name := newSharedClient(t)
			l := k.newSemaphore(c, name, 0)
			mustSetPermits(t, l, 1)
			g := mustAcquire(t, l, 1)
			require.NoError(t, rdb.Set(t.Context(), k.leasesKey(name), "mine", time.Minute).Err())
			require.ErrorIs(t, g.Extend(t.Context(), time.Minute), semaphore.ErrLost)
			require.False(t, g.Valid())
		})
	})
}
