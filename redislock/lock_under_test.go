package redislock_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// lockUnderTest is a lock of one kind on one deployment, with a name of its own.
type lockUnderTest struct {
	*deployment
	kind  string // plain, fair, read, write, multi or string
	name  string
	parts []string // the names of a MultiMutex, otherwise name alone
}

func newLockUnderTest(t testing.TB, dep *deployment, kind string) *lockUnderTest {
	t.Helper()
	lut := &lockUnderTest{deployment: dep, kind: kind, name: redistest.Name(t)}
	lut.parts = []string{lut.name}
	if kind == "multi" {
		lut.parts = []string{lut.name + ":a", lut.name + ":b", lut.name + ":c"}
	}
	return lut
}

// anyMutex is a lock of any kind.
type anyMutex interface {
	Lock(context.Context) (*redislock.Lock, error)
	TryLock(context.Context) (*redislock.Lock, error)
	Do(context.Context, func(context.Context) error) error
}

func newMutex(c *redislock.Client, kind, name string, opts ...redislock.LockOption) *redislock.Mutex {
	switch kind {
	case "fair":
		return c.FairMutex(name, opts...)
	case "read":
		return c.RWMutex(name, opts...).Reader()
	case "write":
		return c.RWMutex(name, opts...).Writer()
	case "string":
		return c.Mutex(name, append([]redislock.LockOption{redislock.WithStringKey()}, opts...)...)
	}
	return c.Mutex(name, opts...)
}

// mutex returns the lock for a client.
func (lut *lockUnderTest) mutex(c *redislock.Client, opts ...redislock.LockOption) anyMutex {
	if lut.kind == "multi" {
		return c.MultiMutex(lut.parts, opts...)
	}
	return newMutex(c, lut.kind, lut.name, opts...)
}

// conflictingMutex returns a lock of the same name that cannot be held at the same time.
func (lut *lockUnderTest) conflictingMutex(c *redislock.Client, opts ...redislock.LockOption) anyMutex {
	if lut.kind == "read" {
		return newMutex(c, "write", lut.name, opts...)
	}
	return lut.mutex(c, opts...)
}

// partMutex returns the lock as a Mutex; of a MultiMutex, its last part.
func (lut *lockUnderTest) partMutex(c *redislock.Client) *redislock.Mutex {
	return newMutex(c, lut.kind, lut.parts[len(lut.parts)-1])
}

// newClient returns a lock client, as a process of its own would have, on the deployment's connections.
func (lut *lockUnderTest) newClient(t testing.TB) *redislock.Client { return newClient(t, lut.clients) }

// newFaultyClient returns a client that connects through a FaultDialer. The server already knows the scripts,
// so one call does the work.
func (lut *lockUnderTest) newFaultyClient(t *testing.T) (*redislock.Client, *redistest.FaultDialer) {
	t.Helper()
	d := &redistest.FaultDialer{}
	c := newClient(t, lut.connect(t, func(o *redis.UniversalOptions) {
		o.Dialer, o.ReadTimeout = d.Dial, 200*time.Millisecond
	}))
	mustUnlock(t, mustTryLock(t, lut.mutex(c)))
	lut.requireNoKeys(t)
	return c, d
}

// mustLock acquires the lock, which must be free, for a client of its own.
func (lut *lockUnderTest) mustLock(t testing.TB, opts ...redislock.LockOption) *redislock.Lock {
	t.Helper()
	return mustTryLock(t, lut.mutex(lut.newClient(t), opts...))
}

// anotherID is the id of a holder of this library.
const anotherID = "01234567-89ab-4def-8123-456789abcdef:1"

// writeHold writes the hold of another client to Redis. A ttl of 0 sets no expiry. free deletes it without a
// message.
func (lut *lockUnderTest) writeHold(t testing.TB, ttl time.Duration) (free func()) {
	t.Helper()
	for _, name := range lut.parts {
		fields := []any{"another:1", 1}
		if lut.kind == "write" || lut.kind == "read" {
			fields = []any{"mode", "write", "another:1:write", 1}
		}
		_, err := lut.rdb.TxPipelined(t.Context(), func(pipe redis.Pipeliner) error {
			if lut.kind == "string" {
				pipe.Set(t.Context(), name, anotherID, 0)
			} else {
				pipe.HSet(t.Context(), name, fields...)
			}
			if ttl > 0 {
				pipe.PExpire(t.Context(), name, ttl)
			}
			return nil
		})
		require.NoError(t, err)
	}
	return func() { lut.deleteKeys(t) }
}

// requireHeldOnce checks that each name has one holder, with the value of its kind, and an expiry. It returns their ids.
func (lut *lockUnderTest) requireHeldOnce(t testing.TB) (holders []string) {
	t.Helper()
	for _, name := range lut.parts {
		if lut.kind == "string" {
			holders = append(holders, lut.rdb.Get(t.Context(), name).Val())
			require.Regexp(t, `^[-0-9a-f]{36}:\d+(:m=.*)?$`, holders[0])
			require.Positive(t, lut.rdb.PTTL(t.Context(), name).Val())
			continue
		}
		fields, err := lut.rdb.HGetAll(t.Context(), name).Result()
		require.NoError(t, err)
		mode := fields["mode"]
		delete(fields, "mode")
		require.Len(t, fields, 1)
		for id, count := range fields {
			require.Contains(t, []string{"0", "1"}, count)
			require.Equal(t, strings.HasSuffix(id, ":write"), mode == "write")
			holders = append(holders, id)
		}
		require.Positive(t, lut.rdb.PTTL(t.Context(), name).Val())
	}
	return holders
}

// remainingKeys returns the lock's keys in Redis, apart from the token counter, which is meant to stay.
func (lut *lockUnderTest) remainingKeys(t testing.TB) []string {
	t.Helper()
	return slices.DeleteFunc(lut.keysWith(t, lut.name), func(key string) bool {
		return strings.HasPrefix(key, "redisson_lock_token")
	})
}

func (lut *lockUnderTest) requireNoKeys(t testing.TB) {
	t.Helper()
	poll(t, func() bool { return len(lut.remainingKeys(t)) == 0 }) // the lock may be kept for a waiter for a moment
}

// deleteKeys deletes the lock's keys, as FLUSHALL would, without a message.
func (lut *lockUnderTest) deleteKeys(t testing.TB) {
	t.Helper()
	for _, name := range lut.parts {
		require.NoError(t, lut.rdb.Del(t.Context(), name).Err())
	}
}
