package scripts_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

func acquire(t *testing.T, rdb *redis.Client, name, id string, ttlMillis any) []int64 {
	t.Helper()
	got, err := scripts.LockAcquire.Run(t.Context(), rdb, []string{name}, id, ttlMillis).Int64Slice()
	require.NoError(t, err)
	require.Len(t, got, 2)
	return got
}

func release(t *testing.T, rdb *redis.Client, name, id string) int {
	t.Helper()
	got, err := scripts.LockRelease.Run(t.Context(), rdb, []string{name}, id, "PUBLISH").Int()
	require.NoError(t, err)
	return got
}

func renew(t *testing.T, rdb *redis.Client, ttlMillis any, namesAndIDs ...string) []int64 {
	t.Helper()
	half := len(namesAndIDs) / 2
	var args []any
	for _, id := range namesAndIDs[half:] {
		args = append(args, id, ttlMillis)
	}
	got, err := scripts.LockRenew.Run(t.Context(), rdb, namesAndIDs[:half], args...).Int64Slice()
	require.NoError(t, err)
	return got
}

// requireTTL checks that the key's TTL is at most want and more than a second below it.
func requireTTL(t *testing.T, rdb *redis.Client, name string, want time.Duration) {
	t.Helper()
	got := rdb.PTTL(t.Context(), name).Val()
	require.LessOrEqual(t, got, want)
	require.Greater(t, got, want-time.Second)
}

// Guarantees: L1.
func TestLockAcquire(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rdb := redistest.Shared(t).Client(t)

	t.Run("acquires a free lock in Redisson's format", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		require.Equal(t, []int64{1, 30_000}, acquire(t, rdb, name, "me:1", 30_000))
		require.Equal(t, map[string]string{"me:1": "0"}, rdb.HGetAll(ctx, name).Val())
		requireTTL(t, rdb, name, 30*time.Second)
	})

	t.Run("repeated with the same id, holds once", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		acquire(t, rdb, name, "me:1", 10_000)
		require.Equal(t, []int64{1, 30_000}, acquire(t, rdb, name, "me:1", 30_000))
		require.Equal(t, map[string]string{"me:1": "0"}, rdb.HGetAll(ctx, name).Val())
		requireTTL(t, rdb, name, 30*time.Second)
		require.Equal(t, 1, release(t, rdb, name, "me:1"))
		require.Zero(t, rdb.Exists(ctx, name).Val())
	})

	t.Run("leaves a held lock unchanged and returns its TTL", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		acquire(t, rdb, name, "me:1", 10_000)
		got := acquire(t, rdb, name, "you:1", 60_000)
		require.Zero(t, got[0])
		require.LessOrEqual(t, got[1], int64(10_000))
		require.Greater(t, got[1], int64(9_000))
		require.Equal(t, map[string]string{"me:1": "0"}, rdb.HGetAll(ctx, name).Val())
		requireTTL(t, rdb, name, 10*time.Second)
	})

	t.Run("respects a reentrant Redisson holder without expiry", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		require.NoError(t, rdb.HSet(ctx, name, "0b1c:77", 3).Err())
		require.Equal(t, []int64{0, -1}, acquire(t, rdb, name, "me:1", 30_000))
		require.Equal(t, map[string]string{"0b1c:77": "3"}, rdb.HGetAll(ctx, name).Val())
	})

	t.Run("refuses a read/write lock, even one of the same id", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		require.NoError(t, rdb.HSet(ctx, name, "mode", "read", "me:1", 1).Err())
		err := scripts.LockAcquire.Run(ctx, rdb, []string{name}, "me:1", 30_000).Err()
		require.True(t, redis.HasErrorPrefix(err, "WRONGKIND"), "%v", err)
		require.Equal(t, time.Duration(-1), rdb.PTTL(ctx, name).Val())
	})

	t.Run("refuses a key of another type", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		require.NoError(t, rdb.Set(ctx, name, "x", 0).Err())
		err := scripts.LockAcquire.Run(ctx, rdb, []string{name}, "me:1", 30_000).Err()
		require.True(t, redis.HasErrorPrefix(err, "WRONGTYPE"), "%v", err)
		require.False(t, redis.HasErrorPrefix(err, "WRONGKIND"))
	})

	for _, ttl := range []any{0, -1, "", "x", "nan", "inf", 1.5, int64(1) << 62} {
		t.Run("refuses a TTL that PEXPIRE would not set", func(t *testing.T) {
			t.Parallel()
			name := redistest.Name(t)
			require.Error(t, scripts.LockAcquire.Run(ctx, rdb, []string{name}, "me:1", ttl).Err())
			require.Zero(t, rdb.Exists(ctx, name).Val())
		})
	}

	t.Run("accepts the shortest and the longest TTL", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, []int64{1, 1}, acquire(t, rdb, redistest.Name(t), "me:1", 1))
		require.Equal(t, []int64{1, 1 << 53}, acquire(t, rdb, redistest.Name(t), "me:1", int64(1)<<53))
	})
}

// Guarantees: L34.
func TestLockAcquire_Fenced(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rdb := redistest.Shared(t).Client(t)
	fenced := func(t *testing.T, name, id string, reserve int) []int64 {
		t.Helper()
		got, err := scripts.LockAcquire.Run(
			ctx, rdb, []string{name, scripts.LockFence(name)}, id, 30_000, 60_000, reserve,
		).Int64Slice()
		require.NoError(t, err)
		return got
	}

	t.Run("repeated with the same id, reserves once and returns the last token", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		now := rdb.Time(ctx).Val().UnixMicro()
		first := fenced(t, name, "me:1", 7)
		require.Len(t, first, 4)
		require.GreaterOrEqual(t, first[2], now)
		require.EqualValues(t, 7, first[3])
		require.Equal(t, []int64{1, 30_000, first[2] + 7, 0}, fenced(t, name, "me:1", 7))
		last, err := rdb.Get(ctx, scripts.LockFence(name)).Int64()
		require.NoError(t, err)
		require.Equal(t, first[2]+7, last)
		requireTTL(t, rdb, scripts.LockFence(name), time.Minute)
	})

	t.Run("reserves no tokens while the counter is ahead of the clock", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		const wanted = 10_000_000 // ten seconds of tokens
		first := fenced(t, name, "me:1", wanted)
		require.EqualValues(t, wanted, first[3])
		release(t, rdb, name, "me:1")
		require.Equal(t, []int64{1, 30_000, first[2] + wanted + 1, 0}, fenced(t, name, "me:2", wanted))
		release(t, rdb, name, "me:2")
		require.Equal(t, []int64{1, 30_000, first[2] + wanted + 2, 0}, fenced(t, name, "me:3", wanted))
	})

	t.Run("a release returns unused tokens unless others were issued since", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		keys := []string{name, scripts.LockFence(name)}
		releaseUnused := func(id string, last, used int64) {
			t.Helper()
			require.Equal(t, int64(1), scripts.LockRelease.Run(ctx, rdb, keys, id, "PUBLISH", last, used).Val())
		}
		first := fenced(t, name, "me:1", 1000)
		releaseUnused("me:1", first[2]+1000, first[2]+3)
		require.Equal(t, fmt.Sprint(first[2]+3), rdb.Get(ctx, scripts.LockFence(name)).Val())
		requireTTL(t, rdb, scripts.LockFence(name), time.Minute)
		second := fenced(t, name, "me:2", 1000)
		require.Greater(t, second[2], first[2]+3)
		require.NoError(t, rdb.Incr(ctx, scripts.LockFence(name)).Err())
		releaseUnused("me:2", second[2]+1000, second[2])
		require.Equal(t, fmt.Sprint(second[2]+1001), rdb.Get(ctx, scripts.LockFence(name)).Val())
	})

	t.Run("increases over a counter ahead of the clock and after a lost counter", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		require.NoError(t, rdb.Set(ctx, scripts.LockFence(name), int64(1)<<52, 0).Err())
		require.Equal(t, int64(1)<<52+1, fenced(t, name, "me:1", 0)[2])
		release(t, rdb, name, "me:1")
		require.NoError(t, rdb.Del(ctx, scripts.LockFence(name)).Err())
		now := rdb.Time(ctx).Val().UnixMicro()
		require.GreaterOrEqual(t, fenced(t, name, "me:2", 0)[2], now)
	})

	t.Run("a refused call uses no token", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		token := fenced(t, name, "me:1", 0)[2]
		require.Len(t, fenced(t, name, "you:1", 0), 2, "no token")
		require.Equal(t, token, fenced(t, name, "me:1", 0)[2])
	})
}

// listen subscribes to a channel, and returns a function that waits for the next message.
func listen(t *testing.T, rdb redis.UniversalClient, channel string) (next func() string) {
	t.Helper()
	sub := rdb.Subscribe(t.Context(), channel)
	t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(t.Context())
	require.NoError(t, err)
	return func() string {
		t.Helper()
		m, err := sub.ReceiveMessage(redistest.Within(t, redistest.Patience))
		require.NoError(t, err)
		return m.Payload
	}
}

// newClientID returns what the ids of a client begin with.
func newClientID(t *testing.T) string {
	t.Helper()
	return strings.ReplaceAll(redistest.Name(t), ":", "-")
}

func TestLockForce(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rdb := redistest.Shared(t).Client(t)
	force := func(name string) *redis.Cmd {
		channel := scripts.LockChannel(name)
		return scripts.LockForce.Run(ctx, rdb, []string{name}, "PUBLISH", channel, scripts.ClientChannel(""))
	}

	t.Run("frees any holder and publishes; a second call does neither", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		sub := rdb.Subscribe(ctx, scripts.LockChannel(name))
		defer sub.Close()
		_, err := sub.Receive(ctx)
		require.NoError(t, err)
		acquire(t, rdb, name, "you:1", 30_000)
		require.Equal(t, []any{int64(1)}, force(name).Val())
		require.Equal(t, []any{int64(0)}, force(name).Val())
		require.NoError(t, rdb.Publish(ctx, scripts.LockChannel(name), "end").Err())
		for _, want := range []string{"00", "end"} {
			m, err := sub.ReceiveMessage(ctx)
			require.NoError(t, err)
			require.Equal(t, want, m.Payload)
		}
	})

	t.Run("notifies the holder's client, or returns the id where the channels are sharded", func(t *testing.T) {
		t.Parallel()
		name, client := redistest.Name(t)+" \x00{tag}", newClientID(t)
		heard := listen(t, rdb, scripts.ClientChannel(client))
		acquire(t, rdb, name, client+":7:m=a", 30_000)
		require.Equal(t, []any{int64(1)}, force(name).Val())
		require.Equal(t, client+":7:m=a "+name, heard())
		acquire(t, rdb, name, client+":8", 30_000)
		reply := scripts.LockForce.Run(ctx, rdb, []string{name}, "SPUBLISH", "c", scripts.ClientChannel("")).Val()
		require.Equal(t, []any{int64(1), client + ":8"}, reply)
		require.Zero(t, rdb.Exists(ctx, name).Val())
	})

	t.Run("leaves other kinds and types unchanged", func(t *testing.T) {
		t.Parallel()
		rw, text := redistest.Name(t), redistest.Name(t)
		require.NoError(t, rdb.HSet(ctx, rw, "mode", "read", "you:1", 1).Err())
		require.True(t, redis.HasErrorPrefix(force(rw).Err(), "WRONGKIND"))
		require.NoError(t, rdb.Set(ctx, text, "x", 0).Err())
		require.True(t, redis.HasErrorPrefix(force(text).Err(), "WRONGTYPE"))
		require.Equal(t, int64(2), rdb.Exists(ctx, rw, text).Val())
	})
}

// Guarantees: L8.
func TestLockRelease(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rdb := redistest.Shared(t).Client(t)

	own := redistest.Name(t)
	for what, name := range map[string]string{"a name": own, "a name with a hash tag": own + "{tag}", "a hash tag": "{" + own + "tag}"} {
		t.Run(what+" is freed, 00 published, 1 returned; a second call does neither", func(t *testing.T) {
			t.Parallel()
			channel := scripts.LockChannel(name)
			sub := rdb.Subscribe(ctx, channel)
			defer sub.Close()
			_, err := sub.Receive(ctx)
			require.NoError(t, err)

			acquire(t, rdb, name, "me:1", 30_000)
			require.Equal(t, 3, release(t, rdb, name, "me:1"), "another listens")
			require.Equal(t, 0, release(t, rdb, name, "me:1"))
			require.NoError(t, rdb.Publish(ctx, channel, "end").Err())
			for _, want := range []string{"00", "end"} {
				m, err := sub.ReceiveMessage(ctx)
				require.NoError(t, err)
				require.Equal(t, want, m.Payload)
			}
			require.Zero(t, rdb.Exists(ctx, name).Val())
		})
	}

	t.Run("publishes on a sharded channel with SPUBLISH", func(t *testing.T) {
		redistest.SkipWithoutShardedChannels(t)
		t.Parallel()
		name := redistest.Name(t)
		channel := scripts.LockChannel(name)
		sub := rdb.SSubscribe(ctx, channel)
		defer sub.Close()
		_, err := sub.Receive(ctx)
		require.NoError(t, err)
		acquire(t, rdb, name, "me:1", 30_000)
		require.NoError(t, scripts.LockRelease.Run(ctx, rdb, []string{name}, "me:1", "SPUBLISH").Err())
		m, err := sub.ReceiveMessage(ctx)
		require.NoError(t, err)
		require.Equal(t, "00", m.Payload)
	})

	t.Run("does not free another holder's lock", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		acquire(t, rdb, name, "me:1", 30_000)
		require.Equal(t, 0, release(t, rdb, name, "me:2"))
		require.True(t, rdb.HExists(ctx, name, "me:1").Val())
	})

	t.Run("returns 0 for a lock that does not exist", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, 0, release(t, rdb, redistest.Name(t), "me:1"))
	})
}

func TestLockRenew(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rdb := redistest.Shared(t).Client(t)

	t.Run("sets the TTL of a held lock, as often as it is called", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		acquire(t, rdb, name, "me:1", 5_000)
		for range 2 {
			require.Equal(t, []int64{1}, renew(t, rdb, 30_000, name, "me:1"))
			requireTTL(t, rdb, name, 30*time.Second)
		}
		require.Equal(t, map[string]string{"me:1": "0"}, rdb.HGetAll(ctx, name).Val())
	})

	t.Run("never shortens a longer TTL", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		acquire(t, rdb, name, "me:1", 5_000)
		require.Equal(t, []int64{1}, renew(t, rdb, 60_000, name, "me:1"))
		require.Equal(t, []int64{1}, renew(t, rdb, 30_000, name, "me:1"))
		requireTTL(t, rdb, name, time.Minute)
	})

	t.Run("returns a result for each of many locks", func(t *testing.T) {
		t.Parallel()
		held, others, gone, text := redistest.Name(t), redistest.Name(t), redistest.Name(t), redistest.Name(t)
		acquire(t, rdb, held, "me:1", 5_000)
		acquire(t, rdb, others, "you:1", 5_000)
		require.NoError(t, rdb.Set(ctx, text, "x", 0).Err())
		last := redistest.Name(t)
		acquire(t, rdb, last, "me:5", 5_000)

		got := renew(t, rdb, 30_000, held, others, gone, text, last, "me:1", "me:2", "me:3", "me:4", "me:5")
		require.Equal(t, []int64{1, 0, 0, 0, 1}, got)
		requireTTL(t, rdb, held, 30*time.Second)
		requireTTL(t, rdb, last, 30*time.Second)
		requireTTL(t, rdb, others, 5*time.Second)
		require.Zero(t, rdb.Exists(ctx, gone).Val())
	})

	for _, ttl := range []any{0, -1, "x", 1.5} {
		t.Run("refuses a TTL that would delete the key", func(t *testing.T) {
			t.Parallel()
			name := redistest.Name(t)
			acquire(t, rdb, name, "me:1", 30_000)
			require.Error(t, scripts.LockRenew.Run(ctx, rdb, []string{name}, "me:1", ttl).Err())
			requireTTL(t, rdb, name, 30*time.Second)
		})
	}
}
