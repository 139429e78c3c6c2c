package semaphore_test

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// javaAcquire takes a permit as RPermitExpirableSemaphore does, with a lease by the client's clock.
func javaAcquire(t testing.TB, rdb redis.UniversalClient, name string, lease time.Duration) (id string) {
	t.Helper()
	raw := strings.Repeat("j", 15) + string(rune('a'+len(name)%26))
	require.NoError(t, rdb.Decr(t.Context(), name).Err())
	due := float64(922337203685477)
	if lease > 0 {
		due = float64(time.Now().Add(lease).UnixMilli())
	}
	require.NoError(t, rdb.ZAdd(t.Context(), leasesKey(name), redis.Z{Score: due, Member: raw}).Err())
	return hex.EncodeToString([]byte(raw))
}

func TestSemaphore_SharesPermitsWithJava(t *testing.T) {
	t.Parallel()

	t.Run("Go counts Java's permits, reclaims expired ones, and never those that do not expire", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := newSharedClient(t)
		l := c.Semaphore(name, 0)
		require.NoError(t, rdb.Set(t.Context(), name, 2, 0).Err())
		id := javaAcquire(t, rdb, name, 3*time.Second)
		require.Greater(t, leaseTime(t, l, id), time.Duration(0))
		require.EqualValues(t, 1, available(t, l))
		began := time.Now()
		g := mustAcquire(t, l, 2) // waits for the lease to end
		require.Less(t, time.Since(began), 3*time.Second+wakeLimit)
		require.NoError(t, g.Release(t.Context()))
		require.Zero(t, leaseTime(t, l, id))

		id = javaAcquire(t, rdb, name, 0)
		require.Equal(t, semaphore.Forever, leaseTime(t, l, id))
		_, err := l.TryAcquire(t.Context(), 2)
		require.ErrorIs(t, err, semaphore.ErrNoPermits)
		require.NoError(t, l.UpdateLease(t.Context(), id, time.Minute))
		require.LessOrEqual(t, leaseTime(t, l, id), time.Minute)
		require.NoError(t, l.ReleaseIDs(t.Context(), id))
		require.EqualValues(t, 2, available(t, l))
	})

	t.Run("Go writes Java's format, and Java's release wakes Go", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := newSharedClient(t)
		l := c.Semaphore(name, 0)
		mustSetPermits(t, l, 1)
		g := mustAcquire(t, l, 1)
		require.Equal(t, "0", rdb.Get(t.Context(), name).Val())
		raw, err := hex.DecodeString(g.IDs()[0])
		require.NoError(t, err)
		due, err := rdb.ZScore(t.Context(), leasesKey(name), string(raw)).Result()
		require.NoError(t, err)
		require.WithinDuration(t, time.Now().Add(semaphore.DefaultLease), time.UnixMilli(int64(due)), 5*time.Second)
		require.NoError(t, g.Release(t.Context()))

		id := javaAcquire(t, rdb, name, time.Minute)
		var next *semaphore.Grant
		w := startCall(func() (err error) { next, err = l.Acquire(within(t, testTimeout), 1); return err })
		awaitListeners(t, rdb, scripts.SemChannel(name), 1)
		began := time.Now()
		raw, err = hex.DecodeString(id)
		require.NoError(t, err)
		_, err = rdb.TxPipelined(t.Context(), func(tx redis.Pipeliner) error { // atomically, as Java's script
			tx.ZRem(t.Context(), leasesKey(name), string(raw))
			tx.Incr(t.Context(), name)
			tx.Publish(t.Context(), scripts.SemChannel(name), "1")
			return nil
		})
		require.NoError(t, err)
		require.NoError(t, w.wait(t))
		require.Less(t, time.Since(began), wakeLimit)
		require.NoError(t, next.Release(t.Context()))
	})

	t.Run("a renewal does not restore a released permit", func(t *testing.T) {
		t.Parallel()
		_, rdb, name := newSharedClient(t)
		got, err := scripts.PermitRenew.Run(t.Context(), rdb, []string{leasesKey(name)}, "GT", 0, 1000, 1, "0123456789abcdef").Int64Slice()
		require.NoError(t, err)
		require.Equal(t, []int64{0}, got)
		require.Zero(t, rdb.Exists(t.Context(), leasesKey(name)).Val())
	})
}
