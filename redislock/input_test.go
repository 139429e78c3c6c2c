package redislock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// What callers and other programs do wrong: each has one typed error, and nobody else's hold is touched.
func TestMutex_MisuseHasOneErrorEach(t *testing.T) {
	t.Parallel()

	for what, spoil := range map[string]func(ctx context.Context, rdb *redis.Client, name string) error{
		"a string": func(ctx context.Context, rdb *redis.Client, name string) error {
			return rdb.Set(ctx, name, "x", 0).Err()
		},
		"a list": func(ctx context.Context, rdb *redis.Client, name string) error {
			return rdb.LPush(ctx, name, "x").Err()
		},
		"a read/write lock": func(ctx context.Context, rdb *redis.Client, name string) error {
			return rdb.HSet(ctx, name, "mode", "write", "java:1:write", 1).Err()
		},
	} {
		t.Run("a key that holds "+what+" is ErrWrongKind", func(t *testing.T) {
			t.Parallel()
			c, rdb, name := shared(t)
			require.NoError(t, spoil(t.Context(), rdb, name))
			before := rdb.Dump(t.Context(), name).Val()
			m := c.Mutex(name)
			_, err := m.TryLock(t.Context())
			require.ErrorIs(t, err, redislock.ErrWrongKind)
			require.NotErrorIs(t, err, redislock.ErrLocked)
			_, err = m.Lock(t.Context())
			require.ErrorIs(t, err, redislock.ErrWrongKind)
			_, err = m.ForceUnlock(t.Context())
			require.ErrorIs(t, err, redislock.ErrWrongKind)
			require.Equal(t, before, rdb.Dump(t.Context(), name).Val(), "the key was left alone")
		})
	}

	t.Run("a held key overwritten by another type is ErrLost at the next renewal", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := shared(t)
		l := mustLock(t, c.Mutex(name, redislock.WithLease(time.Second)))
		require.NoError(t, rdb.Set(t.Context(), name, "x", 0).Err())
		<-l.Done()
		require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrLost)
		require.Equal(t, "x", rdb.Get(t.Context(), name).Val())
	})

	t.Run("a held key that lost its expiry gets it back", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := shared(t)
		l := mustLock(t, c.Mutex(name, redislock.WithLease(time.Second)))
		require.NoError(t, rdb.Persist(t.Context(), name).Err())
		poll(t, func() bool { return rdb.PTTL(t.Context(), name).Val() > 0 })
		require.NoError(t, l.Unlock(t.Context()))
	})

	t.Run("another's key without expiry is ErrLocked for ever", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := shared(t)
		holdRaw(t, rdb, name, 0)
		_, err := c.Mutex(name).TryLock(t.Context())
		var locked *redislock.LockedError
		require.ErrorAs(t, err, &locked)
		require.Negative(t, locked.TTL)
	})

	t.Run("use after Close is ErrClosed", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := shared(t)
		l := mustLock(t, c.Mutex(name))
		require.NoError(t, c.Close(t.Context()))
		requireFree(t, rdb, name)
		other := mustLock(t, newClient(t, rdb).Mutex(name))
		holder := requireHeldOnce(t, rdb, name)
		require.ErrorIs(t, l.Err(), redislock.ErrClosed)
		require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrClosed)
		require.ErrorIs(t, l.Extend(t.Context(), time.Minute), redislock.ErrClosed)
		_, err := c.Mutex(name).State(t.Context())
		require.ErrorIs(t, err, redislock.ErrClosed)
		_, err = c.Mutex(name).ForceUnlock(t.Context())
		require.ErrorIs(t, err, redislock.ErrClosed)
		require.Equal(t, holder, requireHeldOnce(t, rdb, name))
		require.NoError(t, other.Unlock(t.Context()))
	})

	t.Run("nested locks need no second connection", func(t *testing.T) {
		t.Parallel()
		server := redistest.Shared(t)
		rdb := server.Client(t, func(o *redis.Options) { o.PoolSize, o.MaxActiveConns = 1, 1 })
		c := newClient(t, rdb)
		name := redistest.Name(t)
		err := c.Mutex(name+":outer").Do(within(t, patience), func(ctx context.Context) error {
			return c.Mutex(name+":inner").Do(ctx, func(ctx context.Context) error {
				return rdb.Ping(ctx).Err()
			})
		})
		require.NoError(t, err)
	})

	t.Run("the same lock nested without an owner waits until its context ends", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := shared(t)
		m := c.Mutex(name)
		err := m.Do(t.Context(), func(context.Context) error {
			inner := m.Do(within(t, 50*time.Millisecond), func(context.Context) error { return nil })
			require.ErrorIs(t, inner, context.DeadlineExceeded)
			require.ErrorIs(t, inner, redislock.ErrLocked)
			return nil
		})
		require.NoError(t, err)
		requireFree(t, rdb, name)
	})
}

// javaUnlock releases a plain lock as Redisson does.
const javaUnlock = `
if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then return nil end
if redis.call('hincrby', KEYS[1], ARGV[2], -1) > 0 then return 0 end
redis.call('del', KEYS[1])
redis.call(ARGV[3], KEYS[2], ARGV[1])
return 1`

// javaLock takes a plain lock as Redisson does.
const javaLock = `
if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
redis.call('hincrby', KEYS[1], ARGV[2], 1)
redis.call('pexpire', KEYS[1], ARGV[1])
return nil end
return redis.call('pttl', KEYS[1])`

// javaRenew is its watchdog.
const javaRenew = `
if redis.call('hexists', KEYS[1], ARGV[2]) == 1 then return redis.call('pexpire', KEYS[1], ARGV[1]) end
return 0`

func TestMutex_AndRedissonsRLock(t *testing.T) {
	t.Parallel()
	const java = "285475da-9152-4c83-822a-67ee2f116a79:52"
	lock := func(t *testing.T, rdb *redis.Client, name string) any {
		t.Helper()
		v, err := rdb.Eval(t.Context(), javaLock, []string{name}, 30_000, java).Result()
		if !errors.Is(err, redis.Nil) {
			require.NoError(t, err)
		}
		return v
	}
	unlock := func(t *testing.T, rdb *redis.Client, name string) any {
		t.Helper()
		v, err := rdb.Eval(t.Context(), javaUnlock, []string{name, scripts.LockChannel(name)}, 0, java, "PUBLISH").Result()
		if !errors.Is(err, redis.Nil) {
			require.NoError(t, err)
		}
		return v
	}

	t.Run("Java holds, reentered and renewed; Go waits and is woken by the last unlock", func(t *testing.T) {
		t.Parallel()
		server, name := redistest.Shared(t), redistest.Name(t)
		rdb := server.Client(t)
		require.Nil(t, lock(t, rdb, name))
		require.Nil(t, lock(t, rdb, name))
		require.Equal(t, "2", rdb.HGet(t.Context(), name, java).Val())
		w := newWaiter(t, server, name)
		call := w.wait(t, within(t, patience))
		require.Equal(t, int64(1), rdb.Eval(t.Context(), javaRenew, []string{name}, 30_000, java).Val())
		require.Equal(t, int64(0), unlock(t, rdb, name))
		require.False(t, isClosed(call.done))
		call.after(func() { require.Equal(t, int64(1), unlock(t, rdb, name)) })
		require.NoError(t, call.err)
		require.Less(t, call.took, 800*time.Millisecond, "by the message, not by a poll")
		require.NoError(t, call.lock.Unlock(t.Context()))
	})

	t.Run("Go holds; Java is refused, cannot unlock or renew it, and is woken", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := shared(t)
		sub := rdb.Subscribe(t.Context(), "redisson_lock__channel:{"+name+"}")
		defer sub.Close()
		_, err := sub.Receive(t.Context())
		require.NoError(t, err)
		l := mustLock(t, c.Mutex(name))
		pttl, ok := lock(t, rdb, name).(int64)
		require.True(t, ok)
		require.Positive(t, pttl)
		require.Nil(t, unlock(t, rdb, name))
		require.Equal(t, int64(0), rdb.Eval(t.Context(), javaRenew, []string{name}, 30_000, java).Val())
		require.NoError(t, l.Unlock(t.Context()))
		m, err := sub.ReceiveMessage(within(t, patience))
		require.NoError(t, err)
		require.Equal(t, "0", m.Payload)
		require.Nil(t, lock(t, rdb, name))
		require.Equal(t, int64(1), unlock(t, rdb, name))
	})

	t.Run("Java's lease runs out and Go takes over", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := shared(t)
		require.Nil(t, lock(t, rdb, name))
		require.NoError(t, rdb.PExpire(t.Context(), name, 200*time.Millisecond).Err())
		l := mustLock(t, c.Mutex(name))
		require.Nil(t, unlock(t, rdb, name), "he is told that it is not his any more")
		requireHeldOnce(t, rdb, name)
		require.NoError(t, l.Unlock(t.Context()))
	})
}
