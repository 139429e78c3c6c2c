package redislock_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// mustLock acquires a lock. The servers of a Quorum have a third of the lease to answer, which a stall of the machine
// may outlast: then mustLock asks again.
func mustLock(t testing.TB, m anyMutex) *redislock.Lock {
	t.Helper()
	ctx := within(t, patience)
	l, err := m.Lock(ctx)
	for redislock.IsSlow(err) {
		t.Log(err)
		l, err = m.Lock(ctx)
	}
	require.NoError(t, err)
	return l
}

func mustTryLock(t testing.TB, m anyMutex) *redislock.Lock {
	t.Helper()
	l, err := m.TryLock(within(t, patience))
	require.NoError(t, err)
	return l
}

// mustRLock acquires a free RWMutex as a reader.
func mustRLock(t testing.TB, rw *redislock.RWMutex) *redislock.Lock {
	t.Helper()
	l, err := rw.TryRLock(t.Context())
	require.NoError(t, err)
	return l
}

// mustWLock acquires a free RWMutex as a writer.
func mustWLock(t testing.TB, rw *redislock.RWMutex) *redislock.Lock {
	t.Helper()
	l, err := rw.TryLock(t.Context())
	require.NoError(t, err)
	return l
}

func mustUnlock(t testing.TB, locks ...*redislock.Lock) {
	t.Helper()
	for _, l := range locks {
		require.NoError(t, l.Unlock(t.Context()))
	}
}

// requireHeldOnce checks the hash in Redis: one holder, with the value of its kind, and an expiry. It returns the holder's
// id.
func requireHeldOnce(t testing.TB, rdb redis.UniversalClient, name string) (holder string) {
	t.Helper()
	fields, err := rdb.HGetAll(t.Context(), name).Result()
	require.NoError(t, err)
	require.Len(t, fields, 1)
	for id, count := range fields {
		require.Contains(t, []string{"0", "1"}, count)
		holder = id
	}
	pttl, err := rdb.PTTL(t.Context(), name).Result()
	require.NoError(t, err)
	require.Positive(t, pttl)
	return holder
}

// requireFree checks that nobody holds the lock. It may be kept for a waiter that was woken.
func requireFree(t testing.TB, rdb redis.UniversalClient, name string) {
	t.Helper()
	fields, err := rdb.HGetAll(t.Context(), name).Result()
	require.NoError(t, err)
	delete(fields, "next")
	require.Empty(t, fields)
}

func requireAllFree(t testing.TB, rdb redis.UniversalClient, names ...string) {
	t.Helper()
	for _, name := range names {
		requireFree(t, rdb, name)
	}
}

func requireLocked(t testing.TB, err error) {
	t.Helper()
	require.ErrorIs(t, err, redislock.ErrLocked)
}

// requireLost checks that the holder learns of the loss from a renewal, before its lease would end. It needs a
// lease that outlasts a stall.
func requireLost(t *testing.T, l *redislock.Lock, since time.Time, lease time.Duration) {
	t.Helper()
	<-l.Done()
	require.Less(t, time.Since(since), lease, "announced by the next renewal")
	require.False(t, l.Valid())
	require.ErrorIs(t, l.Err(), redislock.ErrLost)
	require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrLost)
}

// awaitHeld waits until each of the names is held.
func awaitHeld(t testing.TB, rdb redis.UniversalClient, names ...string) {
	t.Helper()
	for _, name := range names {
		poll(t, func() bool {
			fields := rdb.HGetAll(t.Context(), name).Val()
			delete(fields, "next") // kept for a waiter
			return len(fields) > 0
		})
	}
}

// awaitRenewals waits until renewals have moved each Deadline by more than d, and requires that no lock is
// lost.
func awaitRenewals(t testing.TB, d time.Duration, locks ...*redislock.Lock) {
	t.Helper()
	until := make([]time.Time, len(locks))
	for i, l := range locks {
		until[i] = l.Deadline().Add(d)
	}
	for i, l := range locks {
		poll(t, func() bool { return l.Err() != nil || l.Deadline().After(until[i]) })
		require.NoError(t, l.Err())
	}
}

// awaitSubscription waits until a client is subscribed to the lock's channel.
func awaitSubscription(t testing.TB, rdb *redis.Client, name string) {
	t.Helper()
	channel := scripts.LockChannel(name)
	poll(t, func() bool {
		subs, err := rdb.PubSubNumSub(t.Context(), channel).Result()
		require.NoError(t, err)
		return subs[channel] == 1
	})
}

// writeHold writes the hold of another client to Redis. A ttl of 0 sets no expiry.
func writeHold(t testing.TB, rdb *redis.Client, name string, ttl time.Duration) {
	t.Helper()
	require.NoError(t, rdb.HSet(t.Context(), name, "another:1", 1).Err())
	if ttl > 0 {
		require.NoError(t, rdb.PExpire(t.Context(), name, ttl).Err())
	}
}

func threeNames(t testing.TB) (names [3]string) {
	t.Helper()
	base := redistest.Name(t)
	for i, part := range []string{"a", "b", "c"} {
		names[i] = base + ":" + part
	}
	return names
}
