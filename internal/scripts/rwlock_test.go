package scripts_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// rwLock runs the scripts of a read/write lock.
type rwLock struct {
	t    *testing.T
	rdb  redis.UniversalClient
	name string
}

func (l rwLock) int64s(cmd *redis.Cmd) []int64 {
	l.t.Helper()
	got, err := cmd.Int64Slice()
	require.NoError(l.t, err)
	return got
}

func (l rwLock) read(id string, ttlMillis any) []int64 {
	l.t.Helper()
	return l.int64s(scripts.ReadAcquire.Run(
		l.t.Context(), l.rdb, []string{l.name, scripts.ReadTimeout(l.name, id)}, id, ttlMillis,
	))
}

func (l rwLock) write(id string, ttlMillis any) []int64 {
	l.t.Helper()
	return l.int64s(scripts.WriteAcquire.Run(l.t.Context(), l.rdb, []string{l.name}, id+":write", ttlMillis))
}

func (l rwLock) releaseRead(id string) int {
	l.t.Helper()
	keys := []string{l.name, scripts.ReadTimeout(l.name, id)}
	args := []any{id, "PUBLISH", scripts.RWChannel(l.name), scripts.ReadTimeouts(l.name)}
	got, err := scripts.ReadRelease.Run(l.t.Context(), l.rdb, keys, args...).Int()
	require.NoError(l.t, err)
	return got
}

func (l rwLock) releaseWrite(id string) int {
	l.t.Helper()
	got, err := scripts.WriteRelease.Run(
		l.t.Context(), l.rdb, []string{l.name}, id+":write", "PUBLISH", scripts.RWChannel(l.name),
	).Int()
	require.NoError(l.t, err)
	return got
}

func (l rwLock) downgrade(writer, reader string, ttlMillis any) []int64 {
	l.t.Helper()
	keys := []string{l.name, scripts.ReadTimeout(l.name, reader)}
	return l.int64s(scripts.Downgrade.Run(
		l.t.Context(), l.rdb, keys, writer+":write", reader, ttlMillis, "PUBLISH", scripts.RWChannel(l.name),
	))
}

func (l rwLock) holders() map[string]string { return l.rdb.HGetAll(l.t.Context(), l.name).Val() }

func (l rwLock) requireLease(want time.Duration) {
	l.t.Helper()
	got := l.rdb.PTTL(l.t.Context(), l.name).Val()
	require.LessOrEqual(l.t, got, want)
	require.Greater(l.t, got, want-time.Second)
}

func (l rwLock) requireFree() {
	l.t.Helper()
	require.Zero(l.t, l.rdb.Exists(l.t.Context(), l.name).Val())
}

// javaRead acquires the lock n times for a Java reader, as Redisson documents.
func (l rwLock) javaRead(id string, n int, lease time.Duration) {
	l.t.Helper()
	ctx := l.t.Context()
	require.NoError(l.t, l.rdb.HSet(ctx, l.name, "mode", "read").Err())
	for range n {
		count := l.rdb.HIncrBy(ctx, l.name, id, 1).Val()
		key := scripts.ReadTimeouts(l.name) + ":" + id + ":rwlock_timeout:" + strconv.FormatInt(count, 10)
		require.NoError(l.t, l.rdb.Set(ctx, key, 1, lease).Err())
		left := l.rdb.PTTL(ctx, l.name).Val()
		require.NoError(l.t, l.rdb.PExpire(ctx, l.name, max(left, lease)).Err())
	}
}

// listen subscribes to the lock's channel. The returned function returns the payloads since the last call,
// concatenated.
func (l rwLock) listen() func() string {
	sub := l.rdb.Subscribe(l.t.Context(), scripts.RWChannel(l.name))
	l.t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(l.t.Context())
	require.NoError(l.t, err)
	return func() string {
		l.t.Helper()
		require.NoError(l.t, l.rdb.Publish(l.t.Context(), scripts.RWChannel(l.name), "|").Err())
		heard := ""
		for {
			m, err := sub.ReceiveMessage(l.t.Context())
			require.NoError(l.t, err)
			if m.Payload == "|" {
				return heard
			}
			heard += m.Payload
		}
	}
}

func newRWLock(t *testing.T) rwLock {
	t.Helper()
	return rwLock{t, redistest.Shared(t).Client(t), redistest.Name(t)}
}

func TestRW_Keys(t *testing.T) {
	t.Parallel()
	require.Equal(t, "redisson_rwlock:{a}", scripts.RWChannel("a"))
	require.Equal(t, "{a}", scripts.ReadTimeouts("a"))
	require.Equal(t, "{a}:u:1:rwlock_timeout:1", scripts.ReadTimeout("a", "u:1"))
	require.Equal(t, "redisson_rwlock:{a}:b", scripts.RWChannel("{a}:b"))
	require.Equal(t, "{a}:b", scripts.ReadTimeouts("{a}:b"))
	require.Equal(t, "{a}:b:u:1:rwlock_timeout:1", scripts.ReadTimeout("{a}:b", "u:1"))
}

func TestReadAcquire(t *testing.T) {
	t.Parallel()

	t.Run("readers share it in Redisson's format, each with its own timeout", func(t *testing.T) {
		t.Parallel()
		l := newRWLock(t)
		require.Equal(t, []int64{1, 30_000}, l.read("me:1", 30_000))
		require.Equal(t, []int64{1, 10_000}, l.read("you:1", 10_000))
		require.Equal(t, map[string]string{"mode": "read", "me:1": "1", "you:1": "1"}, l.holders())
		l.requireLease(30 * time.Second) // the longest lease
		left := l.rdb.PTTL(t.Context(), scripts.ReadTimeout(l.name, "you:1")).Val()
		require.LessOrEqual(t, left, 10*time.Second)
		require.Equal(t, "1", l.rdb.Get(t.Context(), scripts.ReadTimeout(l.name, "you:1")).Val())
	})

	t.Run("repeated with the same id, reads once", func(t *testing.T) {
		t.Parallel()
		l := newRWLock(t)
		for range 2 {
			require.Equal(t, []int64{1, 30_000}, l.read("me:1", 30_000))
		}
		require.Equal(t, map[string]string{"mode": "read", "me:1": "1"}, l.holders())
		require.Equal(t, 1, l.releaseRead("me:1"))
		l.requireFree()
	})

	t.Run("a writer excludes readers and returns its remaining lease", func(t *testing.T) {
		t.Parallel()
		l := newRWLock(t)
		l.write("me:1", 10_000)
		got := l.read("you:1", 30_000)
		require.Zero(t, got[0])
		require.InDelta(t, 10_000, got[1], 1_000)
		require.Equal(t, map[string]string{"mode": "write", "me:1:write": "0"}, l.holders())
		require.Zero(t, l.rdb.Exists(t.Context(), scripts.ReadTimeout(l.name, "you:1")).Val())
	})

	t.Run("a hold without expiry remains without one", func(t *testing.T) {
		t.Parallel()
		l := newRWLock(t)
		require.NoError(t, l.rdb.HSet(t.Context(), l.name, "mode", "read", "java:1", 1).Err())
		require.Equal(t, []int64{1, 1_000}, l.read("me:1", 1_000))
		require.Equal(t, time.Duration(-1), l.rdb.PTTL(t.Context(), l.name).Val())
		require.Equal(t, 1, l.releaseRead("me:1"))
		require.Equal(t, map[string]string{"mode": "read", "java:1": "1"}, l.holders())
	})
}

func TestWriteAcquire(t *testing.T) {
	t.Parallel()

	t.Run("acquires a free lock in Redisson's format, once if repeated", func(t *testing.T) {
		t.Parallel()
		l := newRWLock(t)
		for range 2 {
			require.Equal(t, []int64{1, 30_000}, l.write("me:1", 30_000))
		}
		require.Equal(t, map[string]string{"mode": "write", "me:1:write": "0"}, l.holders())
		l.requireLease(30 * time.Second)
	})

	t.Run("leaves readers unchanged and returns the longest lease", func(t *testing.T) {
		t.Parallel()
		l := newRWLock(t)
		l.read("a:1", 5_000)
		l.javaRead("java:1", 2, 20*time.Second)
		got := l.write("me:1", 60_000)
		require.Zero(t, got[0])
		require.InDelta(t, 20_000, got[1], 1_000)
		require.Equal(t, map[string]string{"mode": "read", "a:1": "1", "java:1": "2"}, l.holders())
	})
}

// Plain and read/write locks refuse each other's keys, and both refuse keys of other types.
// Guarantees: A2.
func TestRW_RefusesOtherKinds(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l := newRWLock(t)
	text, plain := l.name+"-text", l.name+"-plain"
	require.NoError(t, l.rdb.Set(ctx, text, "x", 0).Err())
	require.NoError(t, l.rdb.HSet(ctx, plain, "java:1", 1).Err())
	for _, key := range []string{text, plain} {
		for what, err := range map[string]error{
			"read": scripts.ReadAcquire.Run(
				ctx, l.rdb, []string{key, scripts.ReadTimeout(key, "me:1")}, "me:1", 1_000,
			).Err(),
			"write": scripts.WriteAcquire.Run(ctx, l.rdb, []string{key}, "me:1:write", 1_000).Err(),
		} {
			if key == text {
				require.True(t, redis.HasErrorPrefix(err, "WRONGTYPE"), "%s: %v", what, err)
			} else {
				require.True(t, redis.HasErrorPrefix(err, "WRONGKIND"), "%s: %v", what, err)
			}
		}
		require.Zero(t, l.rdb.Exists(ctx, scripts.ReadTimeout(key, "me:1")).Val())
	}
	require.Equal(t, "x", l.rdb.Get(ctx, text).Val())
	require.Equal(t, map[string]string{"java:1": "1"}, l.rdb.HGetAll(ctx, plain).Val())
	for _, ttl := range []any{0, -1, "", "x", "nan", 1.5, int64(1) << 62} {
		free := redistest.Name(t)
		require.Error(t, scripts.ReadAcquire.Run(
			ctx, l.rdb, []string{free, scripts.ReadTimeout(free, "me:1")}, "me:1", ttl,
		).Err())
		require.Error(t, scripts.WriteAcquire.Run(ctx, l.rdb, []string{free}, "me:1:write", ttl).Err())
		require.Error(
			t, scripts.Downgrade.Run(ctx, l.rdb, []string{free, "t"}, "me:1:write", "me:2", ttl, "PUBLISH", "c").Err(),
		)
		require.Error(t, scripts.ReadRenew.Run(ctx, l.rdb, []string{free, "t"}, "me:1", ttl).Err())
		require.Zero(t, l.rdb.Exists(ctx, free).Val())
	}
}

func TestWriteAcquire_Fenced(t *testing.T) {
	t.Parallel()
	l := newRWLock(t)
	fence := scripts.LockFence(l.name)
	acquire := func(id string) []int64 {
		t.Helper()
		return l.int64s(
			scripts.WriteAcquire.Run(t.Context(), l.rdb, []string{l.name, fence}, id+":write", 30_000, 60_000, 2),
		)
	}
	requireTokens(t, l.rdb, fence, acquire, func(id string) { l.releaseWrite(id) }, 2)
}

// requireTokens checks that tokens increase with each hold, and not with a repeated call.
func requireTokens(
	t *testing.T, rdb redis.UniversalClient, fence string,
	acquire func(id string) []int64, release func(id string), reserved int64,
) {
	t.Helper()
	first := acquire("a:1")
	require.Len(t, first, 4)
	require.Equal(t, []int64{1, first[1], first[2] + reserved, 0}, acquire("a:1"), "a repeated call")
	now := rdb.Time(t.Context()).Val().UnixMicro()
	require.InDelta(t, now, first[2], float64(time.Minute.Microseconds()))
	release("a:1")
	second := acquire("b:1")
	require.Greater(t, second[2], first[2]+reserved)
	release("b:1")
	require.NoError(t, rdb.Del(t.Context(), fence).Err())
	third := acquire("c:1")
	require.Greater(t, third[2], second[2], "the token counter was lost")
	require.NoError(t, rdb.Set(t.Context(), fence, now*2, time.Minute).Err())
	release("c:1")
	require.Equal(t, now*2+1, acquire("d:1")[2], "the counter is ahead of the clock")
	require.Positive(t, rdb.PTTL(t.Context(), fence).Val())
	release("d:1")
}

func TestReadRenew(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l := newRWLock(t)
	other := rwLock{t, l.rdb, redistest.Name(t)}
	l.read("me:1", 5_000)
	l.read("you:1", 6_000)
	other.write("you:1", 5_000)
	text := redistest.Name(t)
	require.NoError(t, l.rdb.Set(ctx, text, "x", 0).Err())
	var keys []string
	for _, name := range []string{l.name, other.name, text, redistest.Name(t), l.name} {
		keys = append(keys, name, scripts.ReadTimeout(name, "me:1"))
	}
	for range 2 {
		got := l.int64s(scripts.ReadRenew.Run(
			ctx, l.rdb, keys, "me:1", 30_000, "me:1", 30_000, "me:1", 30_000, "me:1", 30_000, "me:9", 30_000,
		))
		require.Equal(t, []int64{1, 0, 0, 0, 0}, got)
	}
	l.requireLease(30 * time.Second)
	other.requireLease(5 * time.Second)
	require.Greater(t, l.rdb.PTTL(ctx, scripts.ReadTimeout(l.name, "me:1")).Val(), 29*time.Second)
	require.LessOrEqual(
		t, l.rdb.PTTL(ctx, scripts.ReadTimeout(l.name, "you:1")).Val(), 6*time.Second, "another reader's lease",
	)

	// A shorter lease shortens neither its own nor another reader's lease.
	l.int64s(scripts.ReadRenew.Run(ctx, l.rdb, keys[:2], "me:1", 1_000))
	l.requireLease(30 * time.Second)
	require.Greater(t, l.rdb.PTTL(ctx, scripts.ReadTimeout(l.name, "me:1")).Val(), 28*time.Second)
}

func TestRW_InACluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t).Client(t)
	for _, name := range []string{"a", "b", "orders:{42}", "{a}{b}"} {
		l := rwLock{t, rdb, name}
		l.read("me:1", 30_000)
		l.javaRead("java:1", 2, time.Minute)
		require.Equal(t, 1, l.releaseRead("me:1"))
		require.Equal(t, 1, l.releaseRead("java:1"))
		require.Equal(t, []int64{1, 30_000}, l.write("me:2", 30_000))
		require.Equal(t, []int64{1, 20_000}, l.downgrade("me:2", "me:3", 20_000))
		require.Equal(t, []int64{1}, l.int64s(
			scripts.ReadRenew.Run(t.Context(), rdb, []string{name, scripts.ReadTimeout(name, "me:3")}, "me:3", 30_000),
		))
		require.Equal(t, 1, l.releaseRead("me:3"))
		l.requireFree()
	}
}
