package redislock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// What each operation costs Redis, as docs/locks.md says.
func TestKinds_Cost(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t) // of its own: everything there is counted
	rdb := server.Client(t)
	c, name := newClient(t, rdb), redistest.Name(t)
	rw, shared := c.RWMutex(name+":rw"), c.RWMutex(name+":shared")
	mustRLock(t, c.RWMutex(shared.Name(), redislock.WithLease(time.Hour)))
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
			commands += serverCalls(t, rdb, command)
		}
		return serverCalls(t, rdb, "evalsha") + serverCalls(t, rdb, "eval"), commands
	}
	type cost struct{ trips, commands int }
	for _, kind := range []struct {
		what         string
		lock         func() (*redislock.Lock, error)
		take, unlock cost
	}{
		{"Mutex", func() (*redislock.Lock, error) { return c.Mutex(name).Lock(t.Context()) }, cost{1, 4}, cost{1, 2}},
		{"Mutex, fenced", func() (*redislock.Lock, error) {
			return c.Mutex(name, redislock.WithFencing()).Lock(t.Context())
		}, cost{1, 7}, cost{1, 2}},
		{"FairMutex", func() (*redislock.Lock, error) { return c.FairMutex(name).Lock(t.Context()) }, cost{1, 7}, cost{1, 5}},
		{"RWMutex, reader", func() (*redislock.Lock, error) { return rw.RLock(t.Context()) }, cost{1, 6}, cost{1, 4}},
		{"RWMutex, reader beside one who reads for longer", func() (*redislock.Lock, error) { return shared.RLock(t.Context()) }, cost{1, 4}, cost{1, 7}},
		{"RWMutex, writer", func() (*redislock.Lock, error) { return rw.Lock(t.Context()) }, cost{1, 5}, cost{1, 4}},
		{"MultiMutex of 3", func() (*redislock.Lock, error) { return c.MultiMutex(names).Lock(t.Context()) }, cost{3, 12}, cost{3, 6}},
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
