package semaphore_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// patience bounds what a test waits for; nothing is expected to take that long.
const patience = 30 * time.Second

func newWheel(t testing.TB) *wheel.Wheel {
	t.Helper()
	w, err := wheel.New()
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := w.Stop(context.Background())
		require.NoError(t, err)
	})
	return w
}

// newClient returns a client that is closed with the test.
func newClient(t testing.TB, rdb redis.UniversalClient, opts ...semaphore.Option) *semaphore.Client {
	t.Helper()
	c, err := semaphore.New(rdb, append([]semaphore.Option{semaphore.WithWheel(newWheel(t))}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, c.Close(ctx))
	})
	return c
}

// shared returns a client on the shared server, the plain client below it, and a name.
func shared(t testing.TB, opts ...semaphore.Option) (*semaphore.Client, *redis.Client, string) {
	t.Helper()
	rdb := redistest.Shared(t).Client(t)
	return newClient(t, rdb, opts...), rdb, redistest.Name(t)
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// poll looks every few milliseconds until cond holds. It is for states of Redis that announce themselves to nobody.
func poll(t testing.TB, cond func() bool) {
	t.Helper()
	w := newWheel(t)
	ctx := within(t, patience)
	for !cond() {
		require.NoError(t, w.Sleep(ctx, 5*time.Millisecond), "the awaited state did not come")
	}
}

// awaitListeners returns when n clients are subscribed to the semaphore's channel.
func awaitListeners(t testing.TB, rdb redis.UniversalClient, name string, n int64) { //nolint:unparam // says what it waits for
	t.Helper()
	channel := scripts.SemChannel(name)
	poll(t, func() bool {
		subs, err := rdb.PubSubNumSub(t.Context(), channel).Result()
		require.NoError(t, err)
		return subs[channel] == n
	})
}

// call is something under way on a goroutine of its own.
type call struct {
	done chan struct{}
	err  error
	took time.Duration
}

func start(f func() error) *call {
	c := &call{done: make(chan struct{})}
	began := time.Now()
	go func() {
		defer close(c.done)
		c.err = f()
		c.took = time.Since(began)
	}()
	return c
}

func (c *call) wait(t testing.TB) error {
	t.Helper()
	select {
	case <-c.done:
	case <-within(t, patience).Done():
		require.FailNow(t, "still waiting")
	}
	return c.err
}

func (c *call) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// counter counts the script calls of a client that the server has answered.
type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && strings.HasPrefix(cmd.Name(), "eval") {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.n++
		}
		return err
	}
}

func (c *counter) scripts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// counted returns a client whose scripts are counted.
func counted(t testing.TB, rdb *redis.Client, opts ...semaphore.Option) (*semaphore.Client, *counter) {
	t.Helper()
	n := &counter{}
	rdb.AddHook(n)
	return newClient(t, rdb, opts...), n
}

func set(t testing.TB, s *semaphore.Semaphore, n int64) {
	t.Helper()
	ok, err := s.TrySetPermits(t.Context(), n, 0)
	require.NoError(t, err)
	require.True(t, ok)
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
