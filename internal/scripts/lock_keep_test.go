package scripts_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// acquireFor takes a lock under me:1 with a minimum hold.
func acquireFor(t *testing.T, rdb *redis.Client, name string, leaseMillis, minMillis int) []int64 {
	t.Helper()
	got, err := scripts.LockAcquire.Run(
		t.Context(), rdb, []string{name}, "me:1", leaseMillis, 0, 0, minMillis,
	).Int64Slice()
	require.NoError(t, err)
	return got
}

func keep(t *testing.T, rdb *redis.Client, name string) int {
	t.Helper()
	got, err := scripts.LockKeep.Run(
		t.Context(), rdb, []string{name}, "me:1", "PUBLISH", scripts.LockChannel(name),
	).Int()
	require.NoError(t, err)
	return got
}

// newKept returns the name of a lock that was released before the end of its minimum of ten seconds.
func newKept(t *testing.T, rdb *redis.Client) string {
	t.Helper()
	name := redistest.Name(t)
	require.Equal(t, []int64{1, 30_000}, acquireFor(t, rdb, name, 30_000, 10_000))
	require.Equal(t, 1, keep(t, rdb, name))
	requireKept(t, rdb, name)
	return name
}

func requireKept(t *testing.T, rdb *redis.Client, name string) {
	t.Helper()
	require.Equal(t, []string{"me:1:kept"}, rdb.HKeys(t.Context(), name).Val())
	requireTTL(t, rdb, name, 10*time.Second+2*time.Millisecond) // instants are rounded up
}

// Guarantees: L53.
func TestLockKeep(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rdb := redistest.Shared(t).Client(t)

	t.Run("before the end of the minimum, the key stays until then and the id does not hold it", func(t *testing.T) {
		t.Parallel()
		name := newKept(t, rdb)
		require.Zero(t, keep(t, rdb, name), "a second copy")
		require.Zero(t, release(t, rdb, name, "me:1"))
		requireKept(t, rdb, name)
	})

	t.Run("no late call under the id prolongs the key", func(t *testing.T) {
		t.Parallel()
		name := newKept(t, rdb)
		require.Equal(t, []int64{0}, renew(t, rdb, 60_000, name, "me:1"))
		late := acquireFor(t, rdb, name, 30_000, 10_000)
		require.Zero(t, late[0])
		require.Greater(t, late[1], int64(8_000))
		requireKept(t, rdb, name)
	})

	t.Run("calls that know nothing of a minimum leave the key alone, and force frees it", func(t *testing.T) {
		t.Parallel()
		name := newKept(t, rdb)
		require.Zero(t, acquire(t, rdb, name, "you:1", 60_000)[0])
		shared, err := scripts.LocksAcquire.Run(ctx, rdb, []string{name}, 60_000, "you:2").Int64Slice()
		require.NoError(t, err)
		require.Zero(t, shared[0])
		fair, err := scripts.FairLockAcquire.Run(
			ctx, rdb, scripts.FairLockKeys(name), "you:3", 60_000, 0, 300_000, 15_000, "PUBLISH", "c",
		).Int64Slice()
		require.NoError(t, err)
		require.Zero(t, fair[0])
		require.Zero(t, release(t, rdb, name, "you:1"))
		requireKept(t, rdb, name)

		freed, err := scripts.LockForce.Run(
			ctx, rdb, []string{name}, "PUBLISH", scripts.LockChannel(name), scripts.ClientChannel(""),
		).Slice()
		require.NoError(t, err)
		require.EqualValues(t, 1, freed[0])
		require.Zero(t, rdb.Exists(ctx, name).Val())
	})

	t.Run("releases by the name of the kept field", func(t *testing.T) {
		t.Parallel()
		name := newKept(t, rdb)
		require.Equal(t, 1, release(t, rdb, name, "me:1:kept"))
		require.Zero(t, rdb.Exists(ctx, name).Val())
	})

	t.Run("the minimum counts from the acquisition, whatever renewals and copies came since", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		acquireFor(t, rdb, name, 30_000, 10_000)
		end := rdb.HGet(ctx, name, "me:1").Val()
		require.Equal(t, []int64{1}, renew(t, rdb, 60_000, name, "me:1"))
		require.Equal(t, []int64{1, 90_000}, acquireFor(t, rdb, name, 90_000, 50_000))
		require.Equal(t, end, rdb.HGet(ctx, name, "me:1").Val())
		require.Equal(t, 1, keep(t, rdb, name))
		requireKept(t, rdb, name)
	})

	t.Run("never lengthens the lease", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		acquireFor(t, rdb, name, 30_000, 10_000)
		require.NoError(t, rdb.PExpire(ctx, name, 4*time.Second).Err())
		require.Equal(t, 1, keep(t, rdb, name))
		requireTTL(t, rdb, name, 4*time.Second)
	})

	t.Run("frees the lock after the end of the minimum", func(t *testing.T) {
		t.Parallel()
		for _, end := range []any{1, rdb.Time(ctx).Val().UnixMilli(), "no number"} {
			name := redistest.Name(t)
			require.NoError(t, rdb.HSet(ctx, name, "me:1", end).Err())
			require.Equal(t, 1, keep(t, rdb, name))
			require.Zero(t, rdb.Exists(ctx, name).Val())
		}
	})

	t.Run("wakes waiters in either case", func(t *testing.T) {
		t.Parallel()
		for _, minimum := range []int{10_000, 1} {
			name := redistest.Name(t)
			sub := rdb.Subscribe(ctx, scripts.LockChannel(name))
			defer sub.Close()
			_, err := sub.Receive(ctx)
			require.NoError(t, err)
			acquireFor(t, rdb, name, 30_000, minimum)
			require.Contains(t, []int{1, 3}, keep(t, rdb, name), "3: the minimum of 1 ms has ended, and the next attempt has to yield")
			message, err := sub.ReceiveMessage(redistest.Within(t, redistest.Patience))
			require.NoError(t, err)
			require.Equal(t, "00", message.Payload)
		}
	})
}

// Redis that is short of memory still releases.
func TestLockKeep_ShortOfMemory(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	acquireFor(t, rdb, "n", 30_000, 10_000)
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.Equal(t, 1, keep(t, rdb, "n"))
	requireKept(t, rdb, "n")
}
