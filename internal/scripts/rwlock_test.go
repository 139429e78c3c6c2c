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

// rw is a read/write lock on a server of its kind.
type rw struct {
	t    *testing.T
	rdb  redis.UniversalClient
	name string
}

func (l rw) pair(cmd *redis.Cmd) []int64 {
	l.t.Helper()
	got, err := cmd.Int64Slice()
	require.NoError(l.t, err)
	return got
}

func (l rw) read(id string, ttlMillis any) []int64 {
	l.t.Helper()
	return l.pair(scripts.ReadAcquire.Run(l.t.Context(), l.rdb, []string{l.name, scripts.ReadTimeout(l.name, id)}, id, ttlMillis))
}

func (l rw) write(id string, ttlMillis any) []int64 {
	l.t.Helper()
	return l.pair(scripts.WriteAcquire.Run(l.t.Context(), l.rdb, []string{l.name}, id+":write", ttlMillis))
}

func (l rw) unread(id string) int {
	l.t.Helper()
	keys := []string{l.name, scripts.ReadTimeout(l.name, id)}
	args := []any{id, "PUBLISH", scripts.RWChannel(l.name), scripts.ReadTimeouts(l.name)}
	got, err := scripts.ReadRelease.Run(l.t.Context(), l.rdb, keys, args...).Int()
	require.NoError(l.t, err)
	return got
}

func (l rw) unwrite(id string) int {
	l.t.Helper()
	got, err := scripts.WriteRelease.Run(l.t.Context(), l.rdb, []string{l.name}, id+":write", "PUBLISH", scripts.RWChannel(l.name)).Int()
	require.NoError(l.t, err)
	return got
}

func (l rw) downgrade(writer, reader string, ttlMillis any) []int64 {
	l.t.Helper()
	keys := []string{l.name, scripts.ReadTimeout(l.name, reader)}
	return l.pair(scripts.Downgrade.Run(l.t.Context(), l.rdb, keys, writer+":write", reader, ttlMillis, "PUBLISH", scripts.RWChannel(l.name)))
}

func (l rw) fields() map[string]string { return l.rdb.HGetAll(l.t.Context(), l.name).Val() }

func (l rw) requireLease(want time.Duration) {
	l.t.Helper()
	got := l.rdb.PTTL(l.t.Context(), l.name).Val()
	require.LessOrEqual(l.t, got, want)
	require.Greater(l.t, got, want-time.Second)
}

func (l rw) requireGone() {
	l.t.Helper()
	require.Zero(l.t, l.rdb.Exists(l.t.Context(), l.name).Val())
}

// javaRead does what Redisson's read lock documents for an acquisition that succeeds, held n times.
func (l rw) javaRead(id string, n int, lease time.Duration) {
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

// listen returns the payloads of the lock's channel.
func (l rw) listen() func() string {
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

func sharedRW(t *testing.T) rw {
	t.Helper()
	return rw{t, redistest.Shared(t).Client(t), redistest.Name(t)}
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

	t.Run("readers share it in Redisson's form, each with a timeout of its own", func(t *testing.T) {
		t.Parallel()
		l := sharedRW(t)
		require.Equal(t, []int64{1, 30_000}, l.read("me:1", 30_000))
		require.Equal(t, []int64{1, 10_000}, l.read("you:1", 10_000))
		require.Equal(t, map[string]string{"mode": "read", "me:1": "1", "you:1": "1"}, l.fields())
		l.requireLease(30 * time.Second) // the longest
		left := l.rdb.PTTL(t.Context(), scripts.ReadTimeout(l.name, "you:1")).Val()
		require.LessOrEqual(t, left, 10*time.Second)
		require.Equal(t, "1", l.rdb.Get(t.Context(), scripts.ReadTimeout(l.name, "you:1")).Val())
	})

	t.Run("executed twice with one id it reads once", func(t *testing.T) {
		t.Parallel()
		l := sharedRW(t)
		for range 2 {
			require.Equal(t, []int64{1, 30_000}, l.read("me:1", 30_000))
		}
		require.Equal(t, map[string]string{"mode": "read", "me:1": "1"}, l.fields())
		require.Equal(t, 1, l.unread("me:1"))
		l.requireGone()
	})

	t.Run("a writer keeps readers out and says for how long", func(t *testing.T) {
		t.Parallel()
		l := sharedRW(t)
		l.write("me:1", 10_000)
		got := l.read("you:1", 30_000)
		require.Zero(t, got[0])
		require.InDelta(t, 10_000, got[1], 1_000)
		require.Equal(t, map[string]string{"mode": "write", "me:1:write": "1"}, l.fields())
		require.Zero(t, l.rdb.Exists(t.Context(), scripts.ReadTimeout(l.name, "you:1")).Val())
	})

	t.Run("a hold without expiry stays one", func(t *testing.T) {
		t.Parallel()
		l := sharedRW(t)
		require.NoError(t, l.rdb.HSet(t.Context(), l.name, "mode", "read", "java:1", 1).Err())
		require.Equal(t, []int64{1, 1_000}, l.read("me:1", 1_000))
		require.Equal(t, time.Duration(-1), l.rdb.PTTL(t.Context(), l.name).Val())
		require.Equal(t, 1, l.unread("me:1"))
		require.Equal(t, map[string]string{"mode": "read", "java:1": "1"}, l.fields())
	})
}

func TestWriteAcquire(t *testing.T) {
	t.Parallel()

	t.Run("takes a free lock in Redisson's form; twice with one id is once", func(t *testing.T) {
		t.Parallel()
		l := sharedRW(t)
		for range 2 {
			require.Equal(t, []int64{1, 30_000}, l.write("me:1", 30_000))
		}
		require.Equal(t, map[string]string{"mode": "write", "me:1:write": "1"}, l.fields())
		l.requireLease(30 * time.Second)
	})

	t.Run("leaves readers and writers alone and tells the longest lease", func(t *testing.T) {
		t.Parallel()
		l := sharedRW(t)
		l.read("a:1", 5_000)
		l.javaRead("java:1", 2, 20*time.Second)
		got := l.write("me:1", 60_000)
		require.Zero(t, got[0])
		require.InDelta(t, 20_000, got[1], 1_000)
		require.Equal(t, map[string]string{"mode": "read", "a:1": "1", "java:1": "2"}, l.fields())
	})
}

// Plain and read/write locks refuse each other's keys, and both refuse what is no lock.
func TestRW_RefusesOtherKinds(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l := sharedRW(t)
	text, plain := l.name+"-text", l.name+"-plain"
	require.NoError(t, l.rdb.Set(ctx, text, "x", 0).Err())
	require.NoError(t, l.rdb.HSet(ctx, plain, "java:1", 1).Err())
	for _, key := range []string{text, plain} {
		for what, err := range map[string]error{
			"read":  scripts.ReadAcquire.Run(ctx, l.rdb, []string{key, scripts.ReadTimeout(key, "me:1")}, "me:1", 1_000).Err(),
			"write": scripts.WriteAcquire.Run(ctx, l.rdb, []string{key}, "me:1:write", 1_000).Err(),
		} {
			if key == text {
				require.True(t, redis.HasErrorPrefix(err, "WRONGTYPE"), "%s: %v", what, err)
			} else {
				require.True(t, scripts.WrongKind(err), "%s: %v", what, err)
			}
		}
		require.Zero(t, l.rdb.Exists(ctx, scripts.ReadTimeout(key, "me:1")).Val())
	}
	require.Equal(t, "x", l.rdb.Get(ctx, text).Val())
	require.Equal(t, map[string]string{"java:1": "1"}, l.rdb.HGetAll(ctx, plain).Val())
	for _, ttl := range []any{0, -1, "", "x", "nan", 1.5, int64(1) << 62} {
		free := redistest.Name(t)
		require.Error(t, scripts.ReadAcquire.Run(ctx, l.rdb, []string{free, scripts.ReadTimeout(free, "me:1")}, "me:1", ttl).Err())
		require.Error(t, scripts.WriteAcquire.Run(ctx, l.rdb, []string{free}, "me:1:write", ttl).Err())
		require.Error(t, scripts.Downgrade.Run(ctx, l.rdb, []string{free, "t"}, "me:1:write", "me:2", ttl, "PUBLISH", "c").Err())
		require.Error(t, scripts.ReadRenew.Run(ctx, l.rdb, []string{free, "t"}, "me:1", ttl).Err())
		require.Zero(t, l.rdb.Exists(ctx, free).Val())
	}
}

func TestReadRelease(t *testing.T) {
	t.Parallel()

	t.Run("the last reader frees it and publishes 0; a second time it does neither", func(t *testing.T) {
		t.Parallel()
		l := sharedRW(t)
		heard := l.listen()
		l.read("me:1", 30_000)
		l.read("you:1", 30_000)
		require.Equal(t, 1, l.unread("me:1"))
		require.Empty(t, heard())
		require.Equal(t, 0, l.unread("me:1"))
		require.Equal(t, map[string]string{"mode": "read", "you:1": "1"}, l.fields())
		require.Equal(t, 1, l.unread("you:1"))
		require.Equal(t, "0", heard())
		l.requireGone()
		require.Zero(t, l.rdb.Exists(t.Context(), scripts.ReadTimeout(l.name, "you:1")).Val())
	})

	t.Run("the hash then lives as long as the longest lease that remains, Java's counted", func(t *testing.T) {
		t.Parallel()
		l := sharedRW(t)
		l.read("short:1", 5_000)
		l.javaRead("java:1", 2, 10*time.Second)
		l.read("long:1", 60_000)
		l.requireLease(60 * time.Second)
		require.Equal(t, 1, l.unread("long:1"))
		l.requireLease(10 * time.Second)
		require.Equal(t, 1, l.unread("short:1"))
		l.requireLease(10 * time.Second)
		require.Equal(t, map[string]string{"mode": "read", "java:1": "2"}, l.fields())
	})

	t.Run("takes out readers that died, and the lock if they were the last", func(t *testing.T) {
		t.Parallel()
		l := sharedRW(t)
		heard := l.listen()
		l.read("dead:1", 30_000)
		l.javaRead("dead:2", 1, 30*time.Second)
		l.read("me:1", 60_000)
		for _, id := range []string{"dead:1", "dead:2"} {
			require.NoError(t, l.rdb.Del(t.Context(), scripts.ReadTimeout(l.name, id)).Err())
		}
		l.read("me:2", 50_000)
		require.Equal(t, 1, l.unread("me:1"))
		require.Equal(t, map[string]string{"mode": "read", "me:2": "1"}, l.fields())
		require.Equal(t, 1, l.unread("me:2"))
		l.requireGone()
		require.Equal(t, "0", heard())
	})

	t.Run("takes them out also if the clock ticked while the longest lease was set", func(t *testing.T) {
		t.Parallel()
		l := sharedRW(t)
		l.read("dead:1", 30_000)
		l.read("me:1", 60_000)
		require.NoError(t, l.rdb.Del(t.Context(), scripts.ReadTimeout(l.name, "dead:1")).Err())
		own := l.rdb.PExpireTime(t.Context(), scripts.ReadTimeout(l.name, "me:1")).Val()
		// Redis 7.0 reads its clock for each command of a script: the hash may outlast the key of its longest lease a little.
		require.NoError(t, l.rdb.PExpireAt(t.Context(), l.name, time.UnixMilli((own+20*time.Millisecond).Milliseconds())).Err())
		require.Equal(t, 1, l.unread("me:1"))
		l.requireGone()
	})

	t.Run("of a stranger, a writer or nothing is a no", func(t *testing.T) {
		t.Parallel()
		l := sharedRW(t)
		require.Equal(t, 0, l.unread("me:1"))
		l.write("me:1", 30_000)
		require.Equal(t, 0, l.unread("me:1"))
		require.Equal(t, 0, l.unwrite("you:1"))
		require.Equal(t, map[string]string{"mode": "write", "me:1:write": "1"}, l.fields())
	})

	t.Run("what a Java writer reads under his own lock does not free it", func(t *testing.T) {
		t.Parallel()
		l := sharedRW(t)
		heard := l.listen()
		l.write("me:1", 30_000)
		require.NoError(t, l.rdb.HSet(t.Context(), l.name, "me:1", 1).Err())
		require.NoError(t, l.rdb.Set(t.Context(), scripts.ReadTimeout(l.name, "me:1"), 1, time.Minute).Err())
		require.Equal(t, 1, l.unread("me:1"))
		require.Equal(t, map[string]string{"mode": "write", "me:1:write": "1"}, l.fields())
		require.Empty(t, heard())
	})
}

func TestWriteRelease(t *testing.T) {
	t.Parallel()
	l := sharedRW(t)
	heard := l.listen()
	l.write("me:1", 30_000)
	require.Equal(t, 1, l.unwrite("me:1"))
	require.Equal(t, 0, l.unwrite("me:1"))
	l.requireGone()
	require.Equal(t, "1", heard())

	// Whoever reads under his own write lock, as Java services may, keeps reading, and those who wait to read are told.
	l.write("me:2", 30_000)
	require.NoError(t, l.rdb.HSet(t.Context(), l.name, "me:2", 1).Err())
	require.Equal(t, 1, l.unwrite("me:2"))
	require.Equal(t, map[string]string{"mode": "read", "me:2": "1"}, l.fields())
	require.Equal(t, "1", heard())
}

func TestDowngrade(t *testing.T) {
	t.Parallel()
	l := sharedRW(t)
	heard := l.listen()
	l.write("me:1", 60_000)
	for range 2 {
		require.Equal(t, []int64{1, 30_000}, l.downgrade("me:1", "me:2", 30_000))
		require.Equal(t, map[string]string{"mode": "read", "me:2": "1"}, l.fields())
		l.requireLease(30 * time.Second)
	}
	require.Equal(t, "1", heard(), "once")
	require.Equal(t, []int64{1, 30_000}, l.read("you:1", 30_000))
	require.Equal(t, 1, l.unread("me:2"))
	require.Equal(t, int64(0), l.downgrade("me:1", "me:2", 30_000)[0], "a late copy")
	require.Equal(t, map[string]string{"mode": "read", "you:1": "1"}, l.fields())
}

func TestWriteAcquire_Fenced(t *testing.T) {
	t.Parallel()
	l := sharedRW(t)
	fence := scripts.LockFence(l.name)
	take := func(id string) []int64 {
		t.Helper()
		return l.pair(scripts.WriteAcquire.Run(t.Context(), l.rdb, []string{l.name, fence}, id+":write", 30_000, 60_000, 2))
	}
	requireTokens(t, l.rdb, fence, take, func(id string) { l.unwrite(id) }, 2)
}

// requireTokens checks that tokens rise with every hold, and not with a lost reply.
func requireTokens(t *testing.T, rdb redis.UniversalClient, fence string, take func(id string) []int64, release func(id string), spare int64) {
	t.Helper()
	first := take("a:1")
	require.Len(t, first, 4)
	require.Equal(t, []int64{1, first[1], first[2] + spare, 0}, take("a:1"), "a lost reply's")
	now := rdb.Time(t.Context()).Val().UnixMicro()
	require.InDelta(t, now, first[2], float64(time.Minute.Microseconds()))
	release("a:1")
	second := take("b:1")
	require.Greater(t, second[2], first[2]+spare)
	release("b:1")
	require.NoError(t, rdb.Del(t.Context(), fence).Err())
	third := take("c:1")
	require.Greater(t, third[2], second[2], "the fence was lost")
	require.NoError(t, rdb.Set(t.Context(), fence, now*2, 0).Err())
	release("c:1")
	require.Equal(t, now*2+1, take("d:1")[2], "the clock was set back")
	require.Positive(t, rdb.PTTL(t.Context(), fence).Val())
	release("d:1")
}

func TestRWForce(t *testing.T) {
	t.Parallel()
	l := sharedRW(t)
	heard := l.listen()
	force := func(mode string) (int, error) {
		return scripts.RWForce.Run(t.Context(), l.rdb, []string{l.name}, mode, "PUBLISH", scripts.RWChannel(l.name)).Int()
	}
	requireFreed := func(mode string, want int) {
		t.Helper()
		got, err := force(mode)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	requireFreed("read", 0)
	requireFreed("write", 0)
	l.read("a:1", 30_000)
	l.read("b:1", 30_000)
	requireFreed("write", 0)
	requireFreed("read", 1)
	l.requireGone()
	l.write("a:1", 30_000)
	requireFreed("read", 0)
	requireFreed("write", 1)
	requireFreed("write", 0)
	l.requireGone()
	require.Equal(t, "11", heard())
	l.rdb.HSet(t.Context(), l.name, "java:1", 1)
	_, err := force("write")
	require.True(t, scripts.WrongKind(err))
}

func TestReadRenew(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l := sharedRW(t)
	other := rw{t, l.rdb, redistest.Name(t)}
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
		got := l.pair(scripts.ReadRenew.Run(ctx, l.rdb, keys, "me:1", 30_000, "me:1", 30_000, "me:1", 30_000, "me:1", 30_000, "me:9", 30_000))
		require.Equal(t, []int64{1, 0, 0, 0, 0}, got)
	}
	l.requireLease(30 * time.Second)
	other.requireLease(5 * time.Second)
	require.Greater(t, l.rdb.PTTL(ctx, scripts.ReadTimeout(l.name, "me:1")).Val(), 29*time.Second)
	require.LessOrEqual(t, l.rdb.PTTL(ctx, scripts.ReadTimeout(l.name, "you:1")).Val(), 6*time.Second, "somebody else's")

	// A shorter lease shortens neither its own nor the others'.
	l.pair(scripts.ReadRenew.Run(ctx, l.rdb, keys[:2], "me:1", 1_000))
	l.requireLease(30 * time.Second)
	require.Greater(t, l.rdb.PTTL(ctx, scripts.ReadTimeout(l.name, "me:1")).Val(), 28*time.Second)
}

func TestRW_InACluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t).Client(t)
	for _, name := range []string{"a", "b", "orders:{42}", "{a}{b}"} {
		l := rw{t, rdb, name}
		l.read("me:1", 30_000)
		l.javaRead("java:1", 2, time.Minute)
		require.Equal(t, 1, l.unread("me:1"))
		require.Equal(t, 1, l.unread("java:1"))
		require.Equal(t, []int64{1, 30_000}, l.write("me:2", 30_000))
		require.Equal(t, []int64{1, 20_000}, l.downgrade("me:2", "me:3", 20_000))
		require.Equal(t, []int64{1}, l.pair(scripts.ReadRenew.Run(t.Context(), rdb, []string{name, scripts.ReadTimeout(name, "me:3")}, "me:3", 30_000)))
		require.Equal(t, 1, l.unread("me:3"))
		l.requireGone()
	}
}
