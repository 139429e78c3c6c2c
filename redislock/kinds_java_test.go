package redislock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// java is a thread of a Java service, which does what Redisson documents, command by command.
type java struct {
	t    *testing.T
	rdb  *redis.Client
	name string
	id   string // <uuid>:<thread>
}

const (
	javaLease = 1500 * time.Millisecond
	promptly  = 900 * time.Millisecond // sooner than any poll
)

func newJava(t *testing.T, rdb *redis.Client, name string) java {
	t.Helper()
	return java{t, rdb, name, "8b1c7f0e-3a51-4b6e-9d52-0c6f5a2e7d11:42"}
}

func (j java) timeout() string { return scripts.RWPrefix(j.name) + ":" + j.id + ":rwlock_timeout:1" }

// read and write return whether they got the lock.
func (j java) read() bool {
	j.t.Helper()
	ctx := j.t.Context()
	if j.rdb.HGet(ctx, j.name, "mode").Val() == "write" {
		return false
	}
	require.NoError(j.t, j.rdb.HSet(ctx, j.name, "mode", "read", j.id, 1).Err())
	require.NoError(j.t, j.rdb.Set(ctx, j.timeout(), 1, javaLease).Err())
	return j.rdb.PExpire(ctx, j.name, max(j.rdb.PTTL(ctx, j.name).Val(), javaLease)).Val()
}

func (j java) write() bool {
	j.t.Helper()
	ctx := j.t.Context()
	if j.rdb.Exists(ctx, j.name).Val() == 1 {
		return false
	}
	require.NoError(j.t, j.rdb.HSet(ctx, j.name, "mode", "write", j.id+":write", 1).Err())
	return j.rdb.PExpire(ctx, j.name, javaLease).Val()
}

// renew is one pass of Redisson's watchdog over a reader.
func (j java) renew() {
	j.t.Helper()
	ctx := j.t.Context()
	require.True(j.t, j.rdb.HExists(ctx, j.name, j.id).Val())
	require.True(j.t, j.rdb.PExpire(ctx, j.timeout(), javaLease).Val())
	require.True(j.t, j.rdb.PExpire(ctx, j.name, javaLease).Val())
}

// free is what the last unlock does.
func (j java) free(channel, message string) {
	j.t.Helper()
	require.NoError(j.t, j.rdb.Del(j.t.Context(), j.name, j.timeout()).Err())
	require.NoError(j.t, j.rdb.Publish(j.t.Context(), channel, message).Err())
}

// hear returns a channel that gets the next message on a channel of Redis.
func hear(t *testing.T, rdb *redis.Client, channel string) <-chan string {
	t.Helper()
	sub := rdb.Subscribe(t.Context(), channel)
	t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(t.Context())
	require.NoError(t, err)
	heard := make(chan string, 1)
	ctx := within(t, patience)
	go func() {
		if m, err := sub.ReceiveMessage(ctx); err == nil {
			heard <- m.Payload
		}
	}()
	return heard
}

func TestRWMutex_WithJava(t *testing.T) {
	t.Parallel()
	setUp := func(t *testing.T) (*redislock.RWMutex, java, *redis.Client) {
		t.Parallel()
		c, rdb, name := shared(t)
		return c.RWMutex(name), newJava(t, rdb, name), rdb
	}

	t.Run("they read together and keep each other's writers out", func(t *testing.T) {
		rw, j, rdb := setUp(t)
		require.True(t, j.read())
		mine := mustRead(t, rw)
		_, err := rw.TryLock(t.Context())
		requireLocked(t, err)
		require.False(t, j.write())
		mustUnlock(t, mine)
		require.Equal(t, map[string]string{"mode": "read", j.id: "1"}, rdb.HGetAll(t.Context(), j.name).Val())
		_, err = rw.TryLock(t.Context())
		requireLocked(t, err)
	})

	t.Run("a Java writer that unlocks wakes those who wait here", func(t *testing.T) {
		rw, j, rdb := setUp(t)
		require.True(t, j.write())
		require.NoError(t, rdb.PExpire(t.Context(), j.name, time.Minute).Err())
		waiting := begin(func() (*redislock.Lock, error) { return rw.RLock(within(t, patience)) })
		awaitSubscribed(t, rdb, scripts.RWChannel(j.name))
		w := newWheel(t)
		require.NoError(t, w.Sleep(t.Context(), 50*time.Millisecond)) // it looks once more after it has subscribed
		j.free(scripts.RWChannel(j.name), "1")
		free := time.Now()
		l := waiting.wait(t)
		require.Less(t, waiting.at.Sub(free), promptly)
		require.False(t, j.write())
		require.True(t, j.read())
		mustUnlock(t, l)
	})

	t.Run("an unlock here wakes Java, the last reader's and the writer's alike", func(t *testing.T) {
		rw, j, rdb := setUp(t)
		for _, take := range []func(testing.TB, *redislock.RWMutex) *redislock.Lock{mustRead, mustWrite} {
			heard := hear(t, rdb, scripts.RWChannel(j.name))
			l := take(t, rw)
			require.False(t, j.write())
			mustUnlock(t, l)
			require.Contains(t, "01", <-heard)
			require.True(t, j.write())
			require.NoError(t, rdb.Del(t.Context(), j.name).Err())
		}
	})

	t.Run("a Java reader whose watchdog runs keeps a writer out, and loses it when that stops", func(t *testing.T) {
		rw, j, _ := setUp(t)
		require.True(t, j.read())
		waiting := begin(func() (*redislock.Lock, error) { return rw.Lock(within(t, patience)) })
		w := newWheel(t)
		for range 4 {
			require.NoError(t, w.Sleep(t.Context(), javaLease/3))
			require.False(t, isClosed(waiting.done))
			j.renew()
		}
		last := time.Now()
		l := waiting.wait(t)
		require.Greater(t, waiting.at.Sub(last), javaLease-200*time.Millisecond)
		require.False(t, j.read())
		mustUnlock(t, l)
	})

	t.Run("a lock that is renewed here keeps Java out", func(t *testing.T) {
		_, j, rdb := setUp(t)
		const lease = 900 * time.Millisecond
		rw := newClient(t, rdb).RWMutex(j.name, redislock.WithLease(lease))
		l, w := mustRead(t, rw), newWheel(t)
		for range 6 {
			require.NoError(t, w.Sleep(t.Context(), lease/3))
			require.False(t, j.write())
		}
		mustUnlock(t, l)
		require.True(t, j.write())
	})

	t.Run("one that ends here lets Java in", func(t *testing.T) {
		_, j, rdb := setUp(t)
		rw := newClient(t, rdb).RWMutex(j.name, redislock.WithLease(300*time.Millisecond), redislock.WithoutRenewal())
		l := mustWrite(t, rw)
		require.False(t, j.write())
		<-l.Done()
		poll(t, j.write)
		require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrLost)
		require.True(t, rdb.HExists(t.Context(), j.name, j.id+":write").Val(), "Java's is left alone")
	})
}

func TestFairMutex_WithJava(t *testing.T) {
	t.Parallel()

	t.Run("a Java thread in line before is woken first, one behind after it", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := shared(t)
		j, keys := newJava(t, rdb, name), scripts.FairLockKeys(name)
		stand := func(id string) {
			due := float64(time.Now().Add(time.Hour).UnixMilli())
			require.NoError(t, rdb.ZAdd(t.Context(), keys[2], redis.Z{Score: due, Member: id}).Err())
			require.NoError(t, rdb.RPush(t.Context(), keys[1], id).Err())
		}
		take := func(id string) {
			require.Equal(t, id, rdb.LPop(t.Context(), keys[1]).Val())
			require.NoError(t, rdb.ZRem(t.Context(), keys[2], id).Err())
			require.NoError(t, rdb.HSet(t.Context(), name, id, 1).Err())
			require.NoError(t, rdb.PExpire(t.Context(), name, time.Minute).Err())
		}
		held := mustLock(t, c.FairMutex(name))
		stand(j.id)
		waiting := begin(func() (*redislock.Lock, error) { return c.FairMutex(name).Lock(within(t, patience)) })
		poll(t, func() bool { return len(line(t, rdb, name)) == 2 })
		last := strings.TrimSuffix(j.id, "42") + "43"
		stand(last)

		heard := hear(t, rdb, scripts.LockChannel(name)+":"+j.id)
		mustUnlock(t, held)
		require.Equal(t, "0", <-heard)
		take(j.id)
		require.False(t, isClosed(waiting.done))

		next := line(t, rdb, name)[0]
		awaitSubscribed(t, rdb, scripts.LockChannel(name)+":"+next)
		j.free(scripts.LockChannel(name)+":"+next, "0")
		free := time.Now()
		l := waiting.wait(t)
		require.Less(t, waiting.at.Sub(free), promptly)
		heard = hear(t, rdb, scripts.LockChannel(name)+":"+last)
		mustUnlock(t, l)
		require.Equal(t, "0", <-heard)
		take(last)
		_, err := c.FairMutex(name).TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrLocked)
		j.free(scripts.LockChannel(name), "0")
		requireNoLine(t, rdb, name)
	})

	t.Run("a Java holder whose watchdog runs is waited for, and succeeded when it stops", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := shared(t)
		require.NoError(t, rdb.HSet(t.Context(), name, newJava(t, rdb, name).id, 2).Err())
		require.NoError(t, rdb.PExpire(t.Context(), name, javaLease).Err())
		waiting := begin(func() (*redislock.Lock, error) { return c.FairMutex(name).Lock(within(t, patience)) })
		w := newWheel(t)
		for range 4 {
			require.NoError(t, w.Sleep(t.Context(), javaLease/3))
			require.True(t, rdb.PExpire(t.Context(), name, javaLease).Val())
			require.False(t, isClosed(waiting.done))
		}
		last := time.Now()
		l := waiting.wait(t)
		require.Greater(t, waiting.at.Sub(last), javaLease-200*time.Millisecond)
		mustUnlock(t, l)
	})
}

// What each operation costs Redis, as docs/locks.md says.
func TestKinds_Cost(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t) // of its own: everything there is counted
	rdb := server.Client(t)
	c, name := newClient(t, rdb), redistest.Name(t)
	rw, shared := c.RWMutex(name+":rw"), c.RWMutex(name+":shared")
	mustRead(t, c.RWMutex(shared.Name(), redislock.WithLease(time.Hour)))
	var names []string
	for _, part := range []string{"a", "b", "c"} {
		names = append(names, name+":"+part)
	}
	inScripts := []string{
		"hset", "hdel", "hlen", "hget", "hmget", "hexists", "hgetall", "pexpire", "pttl", "exists", "del", "publish", "get", "set",
		"time", "lindex", "lrem", "lpop", "rpush", "zadd", "zrem", "zrank", "zrange", "zscore", "zrangebyscore", "zincrby",
	}
	count := func() (trips, commands int) {
		for _, command := range inScripts {
			commands += callsOf(t, rdb, command)
		}
		return callsOf(t, rdb, "evalsha") + callsOf(t, rdb, "eval"), commands
	}
	type cost struct{ trips, commands int }
	for _, kind := range []struct {
		what         string
		lock         func() (*redislock.Lock, error)
		take, unlock cost
	}{
		{"Mutex", func() (*redislock.Lock, error) { return c.Mutex(name).Lock(t.Context()) }, cost{1, 3}, cost{1, 3}},
		{"Mutex, fenced", func() (*redislock.Lock, error) {
			return c.Mutex(name, redislock.WithFencing()).Lock(t.Context())
		}, cost{1, 6}, cost{1, 3}},
		{"FairMutex", func() (*redislock.Lock, error) { return c.FairMutex(name).Lock(t.Context()) }, cost{1, 9}, cost{1, 5}},
		{"RWMutex, reader", func() (*redislock.Lock, error) { return rw.RLock(t.Context()) }, cost{1, 5}, cost{1, 9}},
		{"RWMutex, reader beside one who reads for longer", func() (*redislock.Lock, error) { return shared.RLock(t.Context()) }, cost{1, 4}, cost{1, 6}},
		{"RWMutex, writer", func() (*redislock.Lock, error) { return rw.Lock(t.Context()) }, cost{1, 4}, cost{1, 4}},
		{"MultiMutex of 3", func() (*redislock.Lock, error) { return c.MultiMutex(names...).Lock(t.Context()) }, cost{3, 9}, cost{3, 9}},
	} {
		l, err := kind.lock() // the first teaches Redis the scripts
		require.NoError(t, err)
		mustUnlock(t, l)
		trips, commands := count()
		l, err = kind.lock()
		require.NoError(t, err)
		trips2, commands2 := count()
		took := cost{trips2 - trips, commands2 - commands}
		require.Equal(t, kind.take, took, "%s, lock", kind.what)
		mustUnlock(t, l)
		trips, commands = count()
		gave := cost{trips - trips2, commands - commands2}
		require.Equal(t, kind.unlock, gave, "%s, unlock", kind.what)
		t.Logf("%s: lock %+v, unlock %+v", kind.what, took, gave)
	}
}
