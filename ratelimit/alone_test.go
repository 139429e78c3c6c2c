package ratelimit_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// alone is a caller whose decisions follow each other quickly, so that it sends them itself, over the second connection
// of its client.
type alone struct {
	server *redistest.Server
	client *ratelimit.Client
	limit  *ratelimit.Limiter
	mu     sync.Mutex
	conns  int
	own    atomic.Int64 // writes to the second connection
	asked  int64        // decisions of Redis
}

// written counts the writes to a connection.
type written struct {
	*net.TCPConn
	n *atomic.Int64
}

func (w *written) Write(b []byte) (int, error) {
	w.n.Add(1)
	return w.TCPConn.Write(b)
}

const (
	plenty      = 1_000_000
	readTimeout = 10 * time.Second
)

func newAlone(t *testing.T, opts ...ratelimit.Option) *alone {
	t.Helper()
	a := &alone{server: redistest.Start(t)}
	rdb := a.server.Client(t, func(o *redis.Options) {
		o.ReadTimeout = readTimeout
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.conns++; a.conns == 2 {
				return &written{conn.(*net.TCPConn), &a.own}, nil
			}
			return conn, nil
		}
	})
	a.client = newClient(t, rdb, opts...)
	a.limit = a.client.Limiter("k", ratelimit.Limit{Rate: 10, Per: time.Hour, Burst: plenty})
	return a
}

// warm decides until the caller sends its calls itself.
func (a *alone) warm(t *testing.T) {
	t.Helper()
	await(t, "the caller to send its calls", func() bool {
		before := a.own.Load()
		for range 100 {
			r, err := a.limit.Allow(t.Context(), "u")
			require.NoError(t, err)
			require.Equal(t, ratelimit.SourceRedis, r.Source)
			a.asked++
		}
		return a.own.Load()-before > 50
	})
}

// hang calls f while Redis does not answer. It reports whether the caller has sent the call of f itself, over the first
// connection of its own.
func (a *alone) hang(f func()) (itself bool) {
	before := a.own.Load()
	a.server.Pause()
	f()
	itself = a.own.Load() > before
	a.server.Resume()
	return itself
}

// A caller that sends its call itself, and leaves, has charged once at most.
// Guarantees: Q5.
func TestAllow_ACallerAloneIsDecidedByThePolicyWhileRedisHangs(t *testing.T) {
	t.Parallel()
	for what, until := range map[string]func(t *testing.T) context.Context{
		"its timeout":                           func(*testing.T) context.Context { return context.Background() },
		"its timeout, with a context":           func(t *testing.T) context.Context { return t.Context() },
		"a deadline, which is also an outage":   func(t *testing.T) context.Context { return within(t, 100*time.Millisecond) },
		"a deadline close to that, beside both": func(t *testing.T) context.Context { return within(t, 990*time.Millisecond) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			await(t, "a call that the caller sends itself", func() bool {
				a := newAlone(t, ratelimit.WithPolicy(ratelimit.FailOpen()), ratelimit.WithTimeout(time.Second))
				a.warm(t)
				itself := a.hang(func() {
					ctx := until(t)
					require.Less(t, redistest.Running(t, func() {
						r, err := a.limit.Allow(ctx, "u")
						require.NoError(t, err)
						require.True(t, r.Allowed)
						require.Equal(t, ratelimit.SourceDegraded, r.Source)
					}), soon)
				})
				a.chargedOnce(t)
				return itself
			})
		})
	}
}

// chargedOnce asserts that the call that was given up was executed once at most.
func (a *alone) chargedOnce(t *testing.T) {
	t.Helper()
	var r ratelimit.Result
	await(t, "an answer", func() bool {
		var err error
		r, err = a.limit.Peek(t.Context(), "u")
		return err == nil && r.Source == ratelimit.SourceRedis
	})
	require.GreaterOrEqual(t, r.Remaining, plenty-a.asked-1)
}

// A caller that sends its call itself returns when its context ends, and fails no other.
// Guarantees: Q14.
func TestAllow_ACallerAloneLeavesWithItsContext(t *testing.T) {
	t.Parallel()
	await(t, "a call that the caller sends itself", func() bool {
		a := newAlone(t, ratelimit.WithTimeout(time.Minute))
		a.warm(t)
		itself := a.hang(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			asks := make(chan error, 1)
			before := a.own.Load()
			go func() { asks <- second(a.limit.Allow(ctx, "u")) }()
			_ = newWheel(t).Sleep(t.Context(), 20*time.Millisecond) // mostly it is sent by then
			others := make(chan error, 3)                           // these wait until it is decided
			for range cap(others) {
				go func() { others <- second(a.limit.Allow(t.Context(), "u")) }()
			}
			cancel()
			require.Less(t, redistest.Running(t, func() { require.ErrorIs(t, <-asks, context.Canceled) }), soon)
			if a.own.Load() > before {
				a.asked += int64(cap(others))
			}
			a.server.Resume()
			for range cap(others) {
				require.NoError(t, <-others)
			}
		})
		if itself {
			a.chargedOnce(t)
		}
		return itself
	})
}

// Close waits for a call that its caller sends itself, as for any other, and until its timeout at most.
func TestClose_WhileACallerAloneIsAsking(t *testing.T) {
	t.Parallel()
	await(t, "a call that the caller sends itself", func() bool {
		a := newAlone(t, ratelimit.WithTimeout(time.Second), ratelimit.WithPolicy(ratelimit.FailClosed()))
		a.warm(t)
		var took time.Duration
		itself := a.hang(func() {
			asks := make(chan error, 1)
			go func() { asks <- second(a.limit.Allow(t.Context(), "u")) }()
			_ = newWheel(t).Sleep(t.Context(), 20*time.Millisecond) // mostly it is sent by then
			took = redistest.Running(t, func() { require.NoError(t, a.client.Close(t.Context())) })
			require.Error(t, <-asks)
		})
		if itself {
			require.Less(t, took, readTimeout/2, "a call that another goroutine has sent takes longer")
		}
		return itself
	})
}

// Only a deadline tells how long Redis had for its answer. A context that ends otherwise is no outage, whatever its
// cause says.
// Guarantees: Q5.
func TestAllow_ACauseIsNoDeadline(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	limits := newClient(t, server.Client(t), ratelimit.WithPolicy(ratelimit.FailOpen()), ratelimit.WithTimeout(time.Minute))
	limit := limits.Limiter("k", ratelimit.PerSecond(10))
	require.NoError(t, second(limit.Allow(t.Context(), "u")))
	server.Pause()
	ctx, cancel := context.WithCancelCause(t.Context())
	asks := make(chan error, 1)
	go func() { asks <- second(limit.Allow(ctx, "u")) }()
	_ = newWheel(t).Sleep(t.Context(), 20*time.Millisecond) // more than the 10 ms that make a deadline an outage
	cancel(context.DeadlineExceeded)
	require.ErrorIs(t, <-asks, context.DeadlineExceeded)
	server.Resume()
}
