package redislock_test

import (
	"context"
	"errors"
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

// Short names for the helpers that all packages share.
const (
	patience  = redistest.Patience
	safeLease = redistest.SafeLease
)

var (
	newWheel    = redistest.Wheel
	within      = redistest.Within
	poll        = redistest.Poll
	skipIfShort = redistest.SkipIfShort
	stalls      = redistest.Stalls
)

// lineOf returns the waiters in the line of a name, the first one first.
func lineOf(t testing.TB, rdb redis.UniversalClient, name string) []string {
	t.Helper()
	return redistest.LineOf(t, rdb, redistest.LineKey(name))
}

// awaitLine waits until n waiters are in the line of a name.
func awaitLine(t testing.TB, rdb redis.UniversalClient, name string, n int) {
	t.Helper()
	redistest.AwaitLine(t, rdb, redistest.LineKey(name), n)
}

// newClient returns a lock client that is closed with the test.
func newClient(t testing.TB, rdb redis.UniversalClient, opts ...redislock.Option) *redislock.Client {
	t.Helper()
	c, err := redislock.New(rdb, append([]redislock.Option{redislock.WithWheel(newWheel(t))}, opts...)...)
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	return c
}

// onSharedServer returns a lock client on the shared server, the go-redis client below it, and a fresh name.
func onSharedServer(t testing.TB) (*redislock.Client, *redis.Client, string) {
	t.Helper()
	rdb := redistest.Shared(t).Client(t)
	return newClient(t, rdb), rdb, redistest.Name(t)
}

// newFaultyClient returns a lock client that connects through a FaultDialer, and a go-redis client that does
// not. Unless opts change it, the lock client waits a second for a reply. The server already knows the scripts,
// so the first matching call does the work.
func newFaultyClient(
	t *testing.T, opts ...func(*redis.Options),
) (c *redislock.Client, dialer *redistest.FaultDialer, rdb *redis.Client) {
	t.Helper()
	server := redistest.Shared(t)
	dialer = &redistest.FaultDialer{}
	opts = append([]func(*redis.Options){func(o *redis.Options) {
		o.Dialer, o.ReadTimeout = dialer.Dial, time.Second
	}}, opts...)
	rdb = server.Client(t)
	for _, s := range scripts.All() {
		require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source()).Err())
	}
	return newClient(t, server.Client(t, opts...)), dialer, rdb
}

// newCountedClient returns a lock client and a counter of its commands.
func newCountedClient(t testing.TB, rdb redis.UniversalClient) (*redislock.Client, *commandCounter) {
	t.Helper()
	n := &commandCounter{n: make(map[string]int)}
	rdb.AddHook(n)
	return newClient(t, rdb), n
}

// commandCounter counts the answered commands of a client by name.
type commandCounter struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *commandCounter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *commandCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			c.count(cmd, cmd.Err())
		}
		return err
	}
}

func (c *commandCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		c.count(cmd, err)
		return err
	}
}

func (c *commandCounter) count(cmd redis.Cmder, err error) {
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.n[cmd.Name()]++
	}
}

// scriptCalls returns the number of answered script calls, which include all attempts to lock.
func (c *commandCounter) scriptCalls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n["evalsha"] + c.n["eval"]
}

// serverCalls returns how often the server has executed a command, inside scripts too.
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

func onlyOneConnection(o *redis.UniversalOptions) { o.PoolSize, o.MaxActiveConns = 1, 1 }

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// requireOver requires that a lock whose lease ends was over before another could acquire it, which its clock
// shows, and that its holder hears of it.
func requireOver(t *testing.T, l *redislock.Lock) {
	t.Helper()
	require.False(t, l.Valid(), "over before another can acquire")
	select {
	case <-l.Done():
	case <-within(t, patience).Done():
		require.Fail(t, "not announced")
	}
}

func isNil(err error) bool                { return errors.Is(err, redis.Nil) }
func errorOf[T any](_ T, err error) error { return err }

var errWork = errors.New("work failed")
