package semaphore_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

const (
	// testTimeout bounds what a test waits for.
	testTimeout = redistest.Patience

	// safeLease is that of grants that must not be lost.
	safeLease = redistest.SafeLease

	// wakeLimit bounds how long a wake-up takes on a busy machine. Tests in which the poll must not wake
	// use polls of an hour.
	wakeLimit = 4 * time.Second
)

// Short names of helpers of all packages.
var (
	newWheel = redistest.Wheel
	within   = redistest.Within
	poll     = redistest.Poll
)

// newClient returns a client that is closed with the test.
func newClient(t testing.TB, rdb redis.UniversalClient, opts ...semaphore.Option) *semaphore.Client {
	t.Helper()
	c, err := semaphore.New(rdb, append([]semaphore.Option{semaphore.WithWheel(newWheel(t))}, opts...)...)
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	return c
}

// newSharedClient returns a client on the shared server, the Redis client that it uses, and a name.
func newSharedClient(t testing.TB) (*semaphore.Client, *redis.Client, string) {
	t.Helper()
	rdb := redistest.Shared(t).Client(t)
	return newClient(t, rdb), rdb, redistest.Name(t)
}

// awaitListeners returns when n clients are subscribed to the channel of the semaphore, on any node and
// sharded or not.
func awaitListeners(t testing.TB, rdb redis.UniversalClient, channel string, n int64) {
	t.Helper()
	poll(t, func() bool {
		var listening atomic.Int64
		count := func(subs *redis.MapStringIntCmd) error {
			listening.Add(subs.Val()[channel])
			return subs.Err()
		}
		cluster, ok := rdb.(*redis.ClusterClient)
		if !ok {
			require.NoError(t, count(rdb.PubSubNumSub(t.Context(), channel)))
		} else {
			require.NoError(t, cluster.ForEachShard(t.Context(), func(ctx context.Context, node *redis.Client) error {
				err := count(node.PubSubNumSub(ctx, channel))
				if redistest.HasShardedChannels(t) {
					err = errors.Join(err, count(node.PubSubShardNumSub(ctx, channel)))
				}
				return err
			}))
		}
		return listening.Load() == n
	})
}

// busyWait returns after d, which may be shorter than a tick of the wheel.
func busyWait(d time.Duration) {
	for began := time.Now(); time.Since(began) < d; {
		runtime.Gosched()
	}
}

// asyncCall is a call on a goroutine of its own.
type asyncCall struct {
	done chan struct{}
	err  error
	took time.Duration
}

// startCall calls f on a goroutine of its own.
func startCall(f func() error) *asyncCall {
	c := &asyncCall{done: make(chan struct{})}
	began := time.Now()
	go func() {
		defer close(c.done)
		c.err = f()
		c.took = time.Since(began)
	}()
	return c
}

func (c *asyncCall) wait(t testing.TB) error {
	t.Helper()
	select {
	case <-c.done:
	case <-within(t, testTimeout).Done():
		require.FailNow(t, "the call has not ended")
	}
	return c.err
}

func (c *asyncCall) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// scriptCounter is a hook that counts the scripts of a client that the server has answered.
type scriptCounter struct {
	mu    sync.Mutex
	n     int
	trips int // round trips with commands of any kind
	open  int
}

func (c *scriptCounter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *scriptCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.add(0, len(cmds))
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if cmd.Err() == nil && strings.HasPrefix(cmd.Name(), "eval") {
				c.add(1, 0)
			}
		}
		c.add(0, -len(cmds))
		return err
	}
}

func (c *scriptCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.add(0, 1)
		err := next(ctx, cmd)
		if err == nil && strings.HasPrefix(cmd.Name(), "eval") {
			c.add(1, -1)
		} else {
			c.add(0, -1)
		}
		return err
	}
}

func (c *scriptCounter) add(n, open int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += n
	c.open += open
	if open > 0 {
		c.trips++
	}
}

// roundTrips returns the number of round trips that have begun.
func (c *scriptCounter) roundTrips() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trips
}

// inFlight returns the number of commands without an answer.
func (c *scriptCounter) inFlight() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open
}

func (c *scriptCounter) scripts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// newCountedClient returns a client and the counter of its scripts.
func newCountedClient(t testing.TB, rdb *redis.Client, opts ...semaphore.Option) (*semaphore.Client, *scriptCounter) {
	t.Helper()
	n := &scriptCounter{}
	rdb.AddHook(n)
	return newClient(t, rdb, opts...), n
}

// permitSetter is a CountingSemaphore or a Semaphore.
type permitSetter interface {
	TrySetPermits(ctx context.Context, n int64) (bool, error)
}

func mustSetPermits(t testing.TB, s permitSetter, n int64) {
	t.Helper()
	ok, err := s.TrySetPermits(t.Context(), n)
	require.NoError(t, err)
	require.True(t, ok)
}

func mustAcquire(t testing.TB, l *semaphore.Semaphore, n int64) *semaphore.Grant {
	t.Helper()
	g, err := l.Acquire(within(t, testTimeout), n)
	require.NoError(t, err)
	return g
}

func available(t testing.TB, s interface {
	Available(context.Context) (int64, error)
},
) int64 {
	t.Helper()
	n, err := s.Available(t.Context())
	require.NoError(t, err)
	return n
}

func stateOf(t testing.TB, l *semaphore.Semaphore) semaphore.State {
	t.Helper()
	s, err := l.State(t.Context())
	require.NoError(t, err)
	return s
}

// leaseTime returns the lease of a permit, or 0 if it is not held.
func leaseTime(t testing.TB, l *semaphore.Semaphore, id string) time.Duration {
	t.Helper()
	for _, p := range stateOf(t, l).Permits {
		if p.ID == id {
			return p.Lease
		}
	}
	return 0
}

// leasesKey returns the key in which Redis keeps the leases of a Semaphore.
func leasesKey(name string) string { return scripts.SuffixName(name, "timeout") }
