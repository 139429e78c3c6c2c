package redislock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// Short names of what tests of all packages share.
const patience = redistest.Patience

var (
	newWheel = redistest.Wheel
	within   = redistest.Within
	poll     = redistest.Poll
)

// newClient returns a lock client that is closed with the test.
func newClient(t testing.TB, rdb redis.UniversalClient, opts ...redislock.Option) *redislock.Client {
	t.Helper()
	c, err := redislock.New(rdb, append(opts, redislock.WithWheel(newWheel(t)))...)
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	return c
}

// shared returns a lock client on the shared server, the plain client below it, and a name.
func onSharedServer(t testing.TB) (*redislock.Client, *redis.Client, string) {
	t.Helper()
	rdb := redistest.Shared(t).Client(t)
	return newClient(t, rdb), rdb, redistest.Name(t)
}

func mustLock(t testing.TB, m anyMutex) *redislock.Lock {
	t.Helper()
	l, err := m.Lock(within(t, patience))
	require.NoError(t, err)
	return l
}

func requireFree(t testing.TB, rdb redis.UniversalClient, name string) {
	t.Helper()
	n, err := rdb.Exists(t.Context(), name).Result()
	require.NoError(t, err)
	require.Zero(t, n, "the key is still there")
}

// requireHeldOnce checks the wire form: one holder, counted once, with a lease.
func requireHeldOnce(t testing.TB, rdb redis.UniversalClient, name string) (holder string) {
	t.Helper()
	fields, err := rdb.HGetAll(t.Context(), name).Result()
	require.NoError(t, err)
	require.Len(t, fields, 1)
	for id, count := range fields {
		require.Equal(t, "1", count)
		holder = id
	}
	pttl, err := rdb.PTTL(t.Context(), name).Result()
	require.NoError(t, err)
	require.Positive(t, pttl)
	return holder
}

// keptFor returns when Redis has prolonged each of the locks, bit by bit, by d.
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

// awaitWaiters returns when a client is subscribed to the lock's channel.
func awaitSubscription(t testing.TB, rdb *redis.Client, name string) {
	t.Helper()
	channel := scripts.LockChannel(name)
	poll(t, func() bool {
		subs, err := rdb.PubSubNumSub(t.Context(), channel).Result()
		require.NoError(t, err)
		return subs[channel] == 1
	})
}

// holdRaw takes the lock as a client of another language would. A ttl of 0 sets none.
func writeHold(t testing.TB, rdb *redis.Client, name string, ttl time.Duration) {
	t.Helper()
	require.NoError(t, rdb.HSet(t.Context(), name, "another:1", 1).Err())
	if ttl > 0 {
		require.NoError(t, rdb.PExpire(t.Context(), name, ttl).Err())
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// counter counts the commands of a client that the server has answered, by the first of their words.
type commandCounter struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *commandCounter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *commandCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *commandCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.n[cmd.Name()]++
		}
		return err
	}
}

// looks is how often the client has asked for a lock and got an answer.
func (c *commandCounter) scriptCalls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n["evalsha"] + c.n["eval"]
}

// counted returns a lock client whose commands are counted.
func newCountedClient(t testing.TB, rdb redis.UniversalClient) (*redislock.Client, *commandCounter) {
	t.Helper()
	n := &commandCounter{n: make(map[string]int)}
	rdb.AddHook(n)
	return newClient(t, rdb), n
}

// callsOf is how often the server has executed a command, in scripts too.
func serverCalls(t testing.TB, rdb *redis.Client, command string) (n int) {
	t.Helper()
	stats, err := rdb.InfoMap(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	if stat := stats["Commandstats"]["cmdstat_"+command]; stat != "" { // absent before the first call
		_, err = fmt.Sscanf(stat, "calls=%d", &n)
		require.NoError(t, err)
	}
	return n
}
