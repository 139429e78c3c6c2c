package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

const poolSize = 40

// idlePool is a redis client whose connections have all been used and are idle, and a server that is well.
type idlePool struct {
	rdb    redis.UniversalClient
	net    redistest.FaultDialer
	server *redistest.Server
	addr   atomic.Value // if set, of the server to which new connections lead
}

func (p *idlePool) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if promoted := p.addr.Load(); promoted != nil {
		addr = promoted.(string)
	}
	return p.net.Dial(ctx, network, addr)
}

// clientsOf make a client with a pool of 40 connections. A ReadTimeout is given where the calls need one.
var clientsOf = map[string]func(t *testing.T, p *idlePool, retries int, timeout time.Duration) redis.UniversalClient{
	"Client": func(t *testing.T, p *idlePool, retries int, timeout time.Duration) redis.UniversalClient {
		return p.server.Client(t, func(o *redis.Options) {
			o.Dialer, o.PoolSize, o.MaxRetries, o.ReadTimeout = p.dial, poolSize, retries, timeout
		})
	},
	"Ring": func(_ *testing.T, p *idlePool, retries int, timeout time.Duration) redis.UniversalClient {
		return redis.NewRing(&redis.RingOptions{
			Addrs: map[string]string{"shard": p.server.Addr()}, Dialer: p.dial,
			PoolSize: poolSize, MaxRetries: retries, ReadTimeout: timeout,
		})
	},
	"ClusterClient": func(t *testing.T, p *idlePool, retries int, timeout time.Duration) redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: redistest.SharedCluster(t).Addrs(), Dialer: p.dial,
			PoolSize: poolSize, MaxRetries: retries, ReadTimeout: timeout,
		})
	},
}

// use takes all connections of both pools of a node at once and gives them back.
func (p *idlePool) use(t *testing.T, key string) {
	t.Helper()
	node, err := redisconn.Node(p.rdb, key)
	require.NoError(t, err)
	redistest.Each(t, 10, func(int) error {
		pipe := node.Pipeline()
		pipe.Do(t.Context(), "blpop", "{"+key+"}nothing", "0.05")
		_, _ = pipe.Exec(t.Context())
		return nil
	})
	conns := make([]*redis.Conn, poolSize)
	for i := range conns {
		conns[i] = node.Conn()
		require.NoError(t, conns[i].Ping(t.Context()).Err())
	}
	for _, c := range conns {
		require.NoError(t, c.Close())
	}
	require.EqualValues(t, poolSize, node.PoolStats().IdleConns)
}

// spoiled makes the connections of a pool bad. New ones lead to a server that is well.
var spoiled = map[string]func(t *testing.T, p *idlePool){
	"reset":  func(_ *testing.T, p *idlePool) { p.net.Reset() },
	"silent": func(_ *testing.T, p *idlePool) { p.net.Silence() },
	// The connections of FaultDialer hide the close from the pool until their next use, as TLS does.
	"closed by the server": func(t *testing.T, p *idlePool) {
		admin := p.server.Client(t)
		require.NoError(t, admin.Do(t.Context(), "client", "kill", "type", "normal", "skipme", "yes").Err())
	},
	"read-only": func(t *testing.T, p *idlePool) {
		promoted := redistest.Start(t)
		p.addr.Store(promoted.Addr())
		host, port, err := net.SplitHostPort(promoted.Addr())
		require.NoError(t, err)
		require.NoError(t, p.server.Client(t).ReplicaOf(t.Context(), host, port).Err())
	},
}

// kind is one kind of call, and a key that decides its node.
type kind struct {
	key string
	of  func(t *testing.T, rdb redis.UniversalClient, patient bool) (call func() error)
}

var quiet = slog.New(slog.DiscardHandler)

func allow(policy ratelimit.Policy) kind {
	return kind{"k:{u}", func(t *testing.T, rdb redis.UniversalClient, patient bool) func() error {
		opts := []ratelimit.Option{
			ratelimit.WithWheel(redistest.Wheel(t)), ratelimit.WithLogger(quiet), ratelimit.WithPolicy(policy),
		}
		if patient {
			opts = append(opts, ratelimit.WithTimeout(redistest.Patience/3))
		}
		c, err := ratelimit.New(rdb, opts...)
		require.NoError(t, err)
		redistest.CloseWith(t, c.Close)
		k := c.Limiter("k", ratelimit.PerHour(1e6))
		return func() error {
			r, err := k.Allow(t.Context(), "u")
			if err == nil && r.Source != ratelimit.SourceRedis {
				err = fmt.Errorf("decided by %v", r.Source)
			}
			return err
		}
	}}
}

var kindsOfCalls = map[string]kind{
	"Allow, FailClosed": allow(ratelimit.FailClosed()),
	"Allow, FailOpen":   allow(ratelimit.FailOpen()),
	"Allow, LocalShare": allow(ratelimit.LocalShare(1)),
	"TryLock and Unlock": {"m", func(t *testing.T, rdb redis.UniversalClient, _ bool) func() error {
		m := newLocks(t, rdb).Mutex("m")
		return func() error { return then(t, m.TryLock, (*redislock.Lock).Unlock) }
	}},
	"Lock and Unlock": {"n", func(t *testing.T, rdb redis.UniversalClient, _ bool) func() error {
		m := newLocks(t, rdb).Mutex("n") // tests share the cluster
		return func() error { return then(t, m.Lock, (*redislock.Lock).Unlock) }
	}},
	"Acquire and Release": {"s", func(t *testing.T, rdb redis.UniversalClient, _ bool) func() error {
		c, err := semaphore.New(rdb, semaphore.WithWheel(redistest.Wheel(t)), semaphore.WithLogger(quiet))
		require.NoError(t, err)
		redistest.CloseWith(t, c.Close)
		s := c.Semaphore("s", 2)
		acquire := func(ctx context.Context) (*semaphore.Grant, error) { return s.Acquire(ctx, 1) }
		return func() error { return then(t, acquire, (*semaphore.Grant).Release) }
	}},
	"Schedule": {"q", func(t *testing.T, rdb redis.UniversalClient, _ bool) func() error {
		c, err := delay.New(rdb, delay.WithWheel(redistest.Wheel(t)), delay.WithLogger(quiet))
		require.NoError(t, err)
		redistest.CloseWith(t, c.Close)
		return func() error { return c.Queue("q").Schedule(t.Context(), "id", time.Hour, nil) }
	}},
}

func newLocks(t *testing.T, rdb redis.UniversalClient) *redislock.Client {
	t.Helper()
	c, err := redislock.New(rdb, redislock.WithWheel(redistest.Wheel(t)), redislock.WithLogger(quiet))
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	return c
}

func then[T any](
	t *testing.T, acquire func(context.Context) (T, error), release func(T, context.Context) error,
) error {
	got, err := acquire(t.Context())
	if err != nil {
		return err
	}
	return release(got, t.Context())
}

// Redis is well, but all idle connections of the pool are bad: no call fails, or, without retries, one. Where the
// connections are silent, a limiter is without Redis for one timeout, and other calls for one ReadTimeout.
// Guarantees: Q38.
func TestCalls_WhileAllIdleConnectionsAreBad(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	for name, k := range kindsOfCalls {
		limits := k.key == "k:{u}"
		for how, spoil := range spoiled {
			for client, newClient := range clientsOf {
				for _, retries := range []int{0, -1} {
					if client != "Client" && (how != "reset" || retries == 0) {
						continue // one cell shows that the node is found
					}
					t.Run(fmt.Sprint(name, "/", client, "/", how, "/retries ", retries), func(t *testing.T) {
						t.Parallel()
						p, timeout := &idlePool{}, redistest.Patience
						if client != "ClusterClient" {
							p.server = redistest.Start(t)
						}
						if how == "silent" {
							timeout = time.Second
						}
						p.rdb = newClient(t, p, retries, timeout)
						t.Cleanup(func() { _ = p.rdb.Close() })
						call := k.of(t, p.rdb, how != "silent")
						redistest.Poll(t, func() bool { return call() == nil }) // the first may be too slow for a limiter
						p.use(t, k.key)
						spoil(t, p)
						if how == "silent" && limits {
							require.Less(t, redistest.Running(t, func() {
								redistest.Poll(t, func() bool { return call() == nil })
							}), 10*time.Second, "40 connections, one after the other, took 50 s")
							return
						}
						if retries == -1 && !limits && how != "read-only" {
							_ = call() // may have been executed, and may not be repeated
						}
						failures, stalled := 0, redistest.Stalls(t)
						redistest.Poll(t, func() bool { // a call that may have been executed is undone in the background
							err := call()
							if err != nil && !errors.Is(err, redislock.ErrLocked) {
								// The check gives the idle connections a tenth of a second. It leaves some if the machine
								// stands still for a part of that: short pauses do not count as stalls.
								failures++
								require.GreaterOrEqual(t, stalled(), 50*time.Millisecond, err)
								require.Less(t, failures, poolSize/8, err)
							}
							return err == nil
						})
					})
				}
			}
		}
	}
}
