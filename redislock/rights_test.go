package redislock_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// A user of Redis 7 may use no channels by default. Its locks still work; waiters poll every few seconds.
// Guarantees: L42.
func TestKinds_WithoutRightsToChannels(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	user := server.User(t, "app", "~*", "+@all")
	for _, kind := range singleNameKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			var lost, released atomic.Int32
			c := newClient(t, server.Client(t, user), redislock.WithHooks(redislock.Hooks{
				Lost:     func(redislock.Event) { lost.Add(1) },
				Released: func(redislock.Event) { released.Add(1) },
			}))
			other := newClient(t, server.Client(t, user))
			m, name := newMutex(c, kind, kind), kind
			for range 5 {
				mustUnlock(t, mustTryLock(t, m))
				require.NoError(t, m.Do(t.Context(), func(context.Context) error { return nil }))
			}
			l := mustTryLock(t, m)
			freed, err := m.ForceUnlock(t.Context())
			require.NoError(t, err)
			require.True(t, freed)
			require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrLost)
			if kind == "write" {
				w, err := c.RWMutex(name).Lock(t.Context())
				require.NoError(t, err)
				r, err := c.RWMutex(name).Downgrade(t.Context(), w)
				require.NoError(t, err)
				mustUnlock(t, r)
			}
			requireFree(t, rdb, name)

			l = mustTryLock(t, m)
			conflicting := newMutex(other, kind, name)
			if kind == "read" {
				conflicting = other.RWMutex(name).Writer()
			}
			waiting := callAsync(func() (*redislock.Lock, error) { return conflicting.Lock(within(t, patience)) })
			require.NoError(t, newWheel(t).Sleep(t.Context(), 100*time.Millisecond))
			mustUnlock(t, l)
			freedAt := time.Now()
			mustUnlock(t, waiting.await(t))
			require.Less(t, waiting.at.Sub(freedAt), 6*time.Second, "one poll")
			require.EqualValues(t, 1, lost.Load())
			require.Positive(t, released.Load())
		})
	}
}

// Waiters of the holder's process need no message to hear that it has unlocked.
func TestUnlock_WakesItsOwnProcessWithoutRightsToChannels(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	user := server.User(t, "app", "~*", "+@all")
	c := newClient(t, server.Client(t, user), redislock.WithPoll(time.Hour))
	for held, waiting := range map[string]string{"mutex": "mutex", "write": "write", "write of a reader": "read"} {
		t.Run(held, func(t *testing.T) {
			t.Parallel()
			name := redistest.Name(t)
			kind, _, _ := strings.Cut(held, " ")
			l := mustTryLock(t, newMutex(c, kind, name, redislock.WithHandoff(0, 0)))
			waiter := newMutex(c, waiting, name, redislock.WithHandoff(0, 0))
			got := callAsync(func() (*redislock.Lock, error) { return waiter.Lock(within(t, patience)) })
			require.NoError(t, newWheel(t).Sleep(t.Context(), 100*time.Millisecond)) // it has found the lock taken
			mustUnlock(t, l)
			mustUnlock(t, got.await(t))
		})
	}
	t.Run("downgrade", func(t *testing.T) {
		t.Parallel()
		rw := c.RWMutex(redistest.Name(t))
		l := mustTryLock(t, rw.Writer())
		got := callAsync(func() (*redislock.Lock, error) { return rw.RLock(within(t, patience)) })
		require.NoError(t, newWheel(t).Sleep(t.Context(), 100*time.Millisecond)) // it has found the lock taken
		r, err := rw.Downgrade(t.Context(), l)
		require.NoError(t, err)
		mustUnlock(t, got.await(t))
		mustUnlock(t, r)
	})
}

// The user lacks a command that a lock needs. The call returns an error and leaves no key without an expiry.
// Guarantees: A5.
func TestKinds_WithoutARight(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	for _, right := range []string{"pexpire", "hset", "set", "pttl", "time", "evalsha"} {
		user := server.User(t, right, "~*", "&*", "+@all", "-"+right)
		c := newClient(t, server.Client(t, user))
		for _, kind := range singleNameKinds {
			for what, opts := range map[string][]redislock.LockOption{"": nil, "fenced": {redislock.WithFencing()}} {
				name := redistest.Name(t)
				l, err := newMutex(c, kind, name, opts...).TryLock(within(t, patience))
				if err == nil {
					mustUnlock(t, l)
				}
				keys, err := rdb.Keys(t.Context(), "*"+name+"*").Result()
				require.NoError(t, err)
				for _, key := range keys {
					const never = -1
					require.NotEqual(t, time.Duration(never), rdb.PTTL(t.Context(), key).Val(),
						"%s %s without %s left %s", what, kind, right, key)
				}
				requireFree(t, rdb, name)
			}
		}
	}
}
