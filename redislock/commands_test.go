package redislock_test

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// Each operation costs the round trips of docs/locks.md and the commands of docs/operations.md. A token that is not the
// first one of its name costs one more.
func TestKinds_Cost(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t) // not shared: every command on it is counted
	rdb := server.Client(t)
	c, name := newClient(t, rdb), redistest.Name(t)
	rw, shared := c.RWMutex(name+":rw"), c.RWMutex(name+":shared")
	mustLock(t, c.Mutex(name+":kept", redislock.WithLease(farLease)))
	poll(t, func() bool { return serverCalls(t, rdb, "hexists") > 0 }) // c has subscribed, and checked its holds
	mustRLock(t, c.RWMutex(shared.Name(), redislock.WithLease(time.Hour)))
	var names []string
	for _, part := range []string{"a", "b", "c"} {
		names = append(names, name+":"+part)
	}
	inScripts := []string{
		"hset", "hdel", "hlen", "hget", "hmget", "hexists", "hgetall", "pexpire", "pttl", "exists",
		"del", "publish", "get", "set",
		"time", "lindex", "lrem", "lpop", "rpush", "zadd", "zrem", "zrank", "zrange",
		"zscore", "zrangebyscore", "zincrby",
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
		{"Mutex", func() (*redislock.Lock, error) {
			return c.Mutex(name).Lock(t.Context())
		}, cost{1, 4}, cost{1, 3}},
		{"Mutex, fenced", func() (*redislock.Lock, error) {
			return c.Mutex(name, redislock.WithFencing()).Lock(t.Context())
		}, cost{1, 8}, cost{1, 3}},
		{"FairMutex", func() (*redislock.Lock, error) {
			return c.FairMutex(name).Lock(t.Context())
		}, cost{1, 7}, cost{1, 5}},
		{"RWMutex, reader", func() (*redislock.Lock, error) {
			return rw.RLock(t.Context())
		}, cost{1, 6}, cost{1, 5}},
		{"RWMutex, reader beside a reader with a longer lease", func() (*redislock.Lock, error) {
			return shared.RLock(t.Context())
		}, cost{1, 4}, cost{1, 7}},
		{"RWMutex, writer", func() (*redislock.Lock, error) {
			return rw.Lock(t.Context())
		}, cost{1, 5}, cost{1, 5}},
		{"MultiMutex of 3", func() (*redislock.Lock, error) {
			return c.MultiMutex(names).Lock(t.Context())
		}, cost{3, 12}, cost{3, 9}},
	} {
		l, err := kind.lock() // the first call loads the scripts
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
		// Parts may share a script, which saves a command each; the first time Redis does not know it, so trips do not tell how many.
		shared := kind.unlock.commands - gave.commands
		require.True(t, 0 <= shared && shared < kind.unlock.trips, "%s, unlock: %+v", kind.what, gave)
		require.LessOrEqual(t, gave.trips, kind.unlock.trips, "%s, unlock", kind.what)
		t.Logf("%s: lock %+v, unlock %+v", kind.what, took, gave)
	}
}

// Guarantees: C3.
func TestRedislock_SendsNoAbsoluteTimes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	conn, err := net.Dial("tcp", server.Addr())
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("MONITOR\r\n"))
	require.NoError(t, err)
	monitor := bufio.NewScanner(conn)
	require.True(t, monitor.Scan(), "+OK")
	c := newClient(t, rdb)
	name := redistest.Name(t)
	l := mustLock(t, c.Mutex(name, redislock.WithLease(safeLease)))
	first := l.Deadline()
	poll(t, func() bool { return l.Deadline().After(first) })
	require.NoError(t, l.Unlock(t.Context()))
	require.NoError(t, rdb.Echo(t.Context(), "the end").Err())
	epoch := fmt.Sprint(time.Now().Unix())[:5]
	seen := 0
	for monitor.Scan() {
		line := monitor.Text()
		if strings.Contains(line, "the end") {
			break
		}
		_, words, _ := strings.Cut(line, "] ")
		if strings.Contains(words, name) {
			seen++
		}
		require.NotContains(t, words, `"`+epoch, "a wall-clock time of the client went to Redis: %s", line)
		require.NotContains(t, strings.ToUpper(words), "EXPIREAT")
	}
	require.Greater(t, seen, 3)
}
