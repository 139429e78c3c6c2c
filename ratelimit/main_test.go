package ratelimit_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

const childEnv = redistest.ChildEnv

func TestMain(m *testing.M) {
	redistest.Child(func(role string) error {
		if role == rolePaused {
			return runPaused()
		}
		return runChild(role)
	})
	redistest.Parallel(8) // most tests wait for windows and servers rather than for the CPU
	redistest.Main(m, redistest.DefaultWheel)
}

// Short names of what tests of all packages share.
const patience = redistest.Patience

var (
	newWheel = redistest.Wheel
	within   = redistest.Within
)

// newClient returns a client that is closed with the test.
func newClient(t testing.TB, rdb redis.UniversalClient, opts ...ratelimit.Option) *ratelimit.Client {
	t.Helper()
	c, err := ratelimit.New(rdb, append([]ratelimit.Option{ratelimit.WithWheel(newWheel(t)), ratelimit.WithTimeout(patience / 3)}, opts...)...)
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	return c
}

// counter counts the round trips of a client.
type counter struct{ n atomic.Int64 }

func (c *counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmds)
	}
}

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

// trips returns how many round trips f takes.
func (c *counter) trips(f func()) int64 {
	before := c.n.Load()
	f()
	return c.n.Load() - before
}

// shared returns a limiter client on the shared server, the plain client below it with a counter, and a name.
func shared(t testing.TB) (*ratelimit.Client, *redis.Client, *counter, string) {
	t.Helper()
	rdb := redistest.Shared(t).Client(t)
	n := &counter{}
	rdb.AddHook(n)
	return newClient(t, rdb), rdb, n, redistest.Name(t)
}

// await polls every few milliseconds until a condition holds that is not announced.
func await(t testing.TB, what string, is func() bool) {
	t.Helper()
	w, ctx := newWheel(t), within(t, patience)
	for !is() {
		require.NoError(t, w.Sleep(ctx, 5*time.Millisecond), "waited for %s", what)
	}
}
