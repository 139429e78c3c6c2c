package redisconn_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

func closing(t *testing.T, d *redisconn.Dedicated) {
	t.Helper()
	redistest.CloseWith(t, d.Close)
}

// acquire takes a lock by a batch, and returns its error.
func acquire(t *testing.T, d *redisconn.Dedicated, names ...string) (errs []error) {
	t.Helper()
	return acquireWithin(t, d, time.Hour, names...)
}

// acquireWithin is acquire over connections that are not older than a lease allows. It takes four seconds at most.
func acquireWithin(t *testing.T, d *redisconn.Dedicated, lease time.Duration, names ...string) (errs []error) {
	t.Helper()
	var batch []scripts.Call
	for _, name := range names {
		batch = append(batch, scripts.LockAcquire.Call([]string{name}, "me:1", 60_000))
	}
	for _, cmd := range d.RunBatch(redistest.Within(t, 4*time.Second), lease, batch) {
		errs = append(errs, cmd.Err())
	}
	return errs
}

func TestDedicated_HasSeparateConnections(t *testing.T) {
	t.Parallel()
	var dials atomic.Int32
	server := redistest.Start(t)
	rdb := server.Client(t, func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
	})
	var hooked int
	rdb.AddHook(countHook{&hooked})
	d := redisconn.NewDedicated(rdb, redistest.Wheel(t), 2)
	require.Zero(t, dials.Load(), "before the first call")
	_ = redisconn.NewDedicated(rdb, redistest.Wheel(t), 2) // which leaves nothing behind without Close
	for range 3 {
		require.Equal(t, []error{nil}, acquire(t, d, redistest.Name(t)))
	}
	require.Zero(t, hooked, "hooks of the caller's client")
	require.Zero(t, rdb.PoolStats().TotalConns, "connections of the caller's client")
	require.EqualValues(t, 1, dials.Load())
	require.NoError(t, d.Close(t.Context()))
	require.ErrorIs(t, acquire(t, d, redistest.Name(t))[0], redis.ErrClosed)
	require.NoError(t, rdb.Ping(t.Context()).Err(), "the caller's client is open")
}

func TestOwnOptions(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = rdb.Close() })
	opt := redisconn.OwnOptions(rdb, 2)
	require.Equal(t, 2, opt.PoolSize)
	require.True(t, opt.ContextTimeoutEnabled)
	require.Equal(t, -1, opt.MaxRetries)
	require.Equal(t, rdb.Options().Addr, opt.Addr)
	require.Positive(t, redisconn.Retries(rdb))
}

type countHook struct{ n *int }

func (h countHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h countHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h countHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		*h.n++
		return next(ctx, cmd)
	}
}

// A Ring whose shards are replaced is followed to the new ones, and one shard that is away fails its own
// calls only.
// Guarantees: L39.
func TestDedicated_AsksTheRingForTheShard(t *testing.T) {
	t.Parallel()
	servers := []*redistest.Server{redistest.Start(t), redistest.Start(t), redistest.Start(t)}
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": servers[0].Addr(), "b": servers[1].Addr()}})
	t.Cleanup(func() { _ = ring.Close() })
	d := redisconn.NewDedicated(ring, redistest.Wheel(t), 2)
	closing(t, d)
	names := []string{"n:0", "n:1", "n:2", "n:3", "n:4", "n:5", "n:6", "n:7"}
	for _, err := range acquire(t, d, names...) {
		require.NoError(t, err)
	}
	for _, name := range names {
		require.EqualValues(t, 1, ring.Exists(t.Context(), name).Val(), "where the caller finds it")
	}
	ring.SetAddrs(map[string]string{"a": servers[0].Addr(), "b": servers[2].Addr()})
	for _, err := range acquire(t, d, names...) {
		require.NoError(t, err)
	}
	for _, name := range names {
		require.EqualValues(t, 1, ring.Exists(t.Context(), name).Val(), "where the caller finds it now")
	}
	servers[2].Kill()
	failed := 0
	for i, err := range acquire(t, d, names...) {
		shard, _ := ring.GetShardClientForKey(names[i])
		if err != nil {
			failed++
			require.Equal(t, servers[2].Addr(), shard.Options().Addr)
		}
	}
	require.Less(t, failed, len(names))
}

// route stands for Sentinels, a virtual address or a proxy: it says where new connections lead, and hides the address.
type route struct {
	mu    sync.Mutex
	to    string
	err   error
	hang  bool
	dials int
}

func (r *route) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	r.mu.Lock()
	r.dials++
	to, err, hang := r.to, r.err, r.hang
	r.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, to)
	return hidden{conn}, err
}

func (r *route) count() (n int) {
	r.set(func() { n = r.dials })
	return n
}

func (r *route) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// hidden is a connection through a proxy that does not tell the server's address.
type hidden struct{ net.Conn }

func (hidden) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4zero} }

// primaries are two servers that take writes, and a client whose new connections lead to the first.
type primaries struct {
	*route
	first, second *redistest.Server
	dedicated     *redisconn.Dedicated
	goesTo        func(server *redistest.Server)
}

// shortLease allows connections an age of 10 ms with Sentinels, of 100 ms without.
const shortLease = 300 * time.Millisecond

func newPrimaries(t *testing.T, client func(*route) redis.UniversalClient) *primaries {
	t.Helper()
	p := &primaries{first: redistest.Start(t), second: redistest.Start(t)}
	p.route = &route{to: p.first.Addr()}
	rdb := client(p.route)
	t.Cleanup(func() { _ = rdb.Close() })
	p.dedicated = redisconn.NewDedicated(rdb, redistest.Wheel(t), 4)
	closing(t, p.dedicated)
	at := map[*redistest.Server]*redis.Client{p.first: p.first.Client(t), p.second: p.second.Client(t)}
	p.goesTo = func(where *redistest.Server) {
		t.Helper()
		name := redistest.Name(t)
		require.Equal(t, []error{nil}, acquireWithin(t, p.dedicated, shortLease, name))
		for server, rdb := range at {
			want := int64(0)
			if server == where {
				want = 1
			}
			require.Equal(t, want, rdb.Exists(t.Context(), name).Val(), "on %s", server.Addr())
		}
	}
	return p
}

// age waits until the connections are old.
func (p *primaries) age(t *testing.T) {
	t.Helper()
	require.NoError(t, redistest.Wheel(t).Sleep(t.Context(), shortLease/3+time.Millisecond))
}

// switching are the clients of one primary whose new connections may lead to another.
var switching = map[string]func(*route) redis.UniversalClient{
	"Client": func(r *route) redis.UniversalClient {
		return redis.NewClient(&redis.Options{Addr: "primary:1", Dialer: r.dial})
	},
	"FailoverClient": func(r *route) redis.UniversalClient {
		return redis.NewClient(&redis.Options{Addr: "FailoverClient", Dialer: r.dial})
	},
	"Ring": func(r *route) redis.UniversalClient {
		return redis.NewRing(&redis.RingOptions{
			Addrs: map[string]string{"a": "primary:1"}, Dialer: r.dial, HeartbeatFrequency: time.Hour,
		})
	},
	"ClusterClient with ClusterSlots": func(r *route) redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{
			Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr)
				return hidden{conn}, err
			},
			ClusterSlots: func(ctx context.Context) ([]redis.ClusterSlot, error) {
				var to string
				var err error
				var hang bool
				r.set(func() { to, err, hang = r.to, r.err, r.hang })
				if hang {
					<-ctx.Done()
				}
				return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: to}}}}, err
			},
		})
	},
}

// Both primaries are alive: the one that was deposed would go on answering for ever.
// Guarantees: L40.
func TestDedicated_FollowsNewConnections(t *testing.T) {
	t.Parallel()
	for name, client := range switching {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPrimaries(t, client)
			p.goesTo(p.first)
			p.goesTo(p.first)
			p.set(func() { p.to = p.second.Addr() })
			p.age(t)
			p.goesTo(p.second)
		})
	}
}

// Sentinels that are away, or hang, change nothing, and cost little.
func TestDedicated_GoesOnWithoutNewConnections(t *testing.T) {
	t.Parallel()
	for name, client := range switching {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPrimaries(t, client)
			p.goesTo(p.first)
			p.set(func() { p.err = errors.New("no Sentinel") })
			p.age(t)
			p.goesTo(p.first)
			p.set(func() { p.err, p.hang = nil, true })
			for range 3 {
				p.age(t)
				require.Less(t, redistest.Running(t, func() { p.goesTo(p.first) }), 2*time.Second)
			}
			require.NoError(t, p.dedicated.Close(t.Context()), "ends a connection attempt that hangs")
		})
	}
}

func TestDedicated_ReplacesConnectionsOnlyWhenTheyAreOld(t *testing.T) {
	t.Parallel()
	r := &route{to: redistest.Shared(t).Addr()}
	rdb := redis.NewClient(&redis.Options{Addr: "FailoverClient", Dialer: r.dial})
	t.Cleanup(func() { _ = rdb.Close() })
	d := redisconn.NewDedicated(rdb, redistest.Wheel(t), 4)
	closing(t, d)
	began := time.Now()
	for range 100 {
		require.Equal(t, []error{nil}, acquire(t, d, redistest.Name(t)))
	}
	require.LessOrEqual(t, r.count(), 2+int(time.Since(began)/time.Second), "at most one a second")
	require.GreaterOrEqual(t, r.count(), 1)
}

// A connection that was closed or forgotten while it was idle is not the server.
func TestDedicated_RepeatsOnANewConnection(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*redistest.FaultDialer){
		"closed": func(bad *redistest.FaultDialer) { bad.LoseReply("evalsha", 1, redistest.Cut) },
		"silent": func(bad *redistest.FaultDialer) { bad.Set(redistest.BlackholeUp) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var bad redistest.FaultDialer
			var later atomic.Bool
			rdb := redistest.Shared(t).Client(t, func(o *redis.Options) {
				o.ReadTimeout = 300 * time.Millisecond
				o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if later.Load() {
						return new(net.Dialer).DialContext(ctx, network, addr)
					}
					return bad.Dial(ctx, network, addr)
				}
			})
			d := redisconn.NewDedicated(rdb, redistest.Wheel(t), 4)
			closing(t, d)
			require.Equal(t, []error{nil}, acquire(t, d, redistest.Name(t)))
			later.Store(true)
			fault(&bad)
			require.Equal(t, []error{nil}, acquire(t, d, redistest.Name(t)))
			require.Positive(t, bad.Effects())
		})
	}
}

// The password was changed in Redis, and the process does not know the new one yet.
func TestDedicated_KeepsConnectionsThatAreLoggedIn(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--requirepass", "old")
	rdb := server.Client(t, func(o *redis.Options) { o.Password = "old" })
	d := redisconn.NewDedicated(rdb, redistest.Wheel(t), 4)
	closing(t, d)
	require.Equal(t, []error{nil}, acquire(t, d, redistest.Name(t)))
	require.NoError(t, rdb.ConfigSet(t.Context(), "requirepass", "new").Err())
	require.NoError(t, redistest.Wheel(t).Sleep(t.Context(), shortLease/3+time.Millisecond))
	require.Equal(t, []error{nil}, acquireWithin(t, d, shortLease, redistest.Name(t)))
}

// The copy of a cluster client replaces its connections when one has failed.
func TestDedicated_OfAClusterRepeatsOnANewConnection(t *testing.T) {
	t.Parallel()
	var bad redistest.FaultDialer
	var later atomic.Bool
	rdb := redistest.SharedCluster(t).Client(t, func(o *redis.ClusterOptions) {
		o.ReadTimeout = 300 * time.Millisecond
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if later.Load() {
				return new(net.Dialer).DialContext(ctx, network, addr)
			}
			return bad.Dial(ctx, network, addr)
		}
	})
	d := redisconn.NewDedicated(rdb, redistest.Wheel(t), 4)
	closing(t, d)
	names := []string{redistest.Name(t), redistest.Name(t) + "2", redistest.Name(t) + "3"}
	require.Equal(t, []error{nil, nil, nil}, acquireWithin(t, d, shortLease, names...))
	later.Store(true)
	bad.Set(redistest.BlackholeUp)
	require.NoError(t, redistest.Wheel(t).Sleep(t.Context(), shortLease/3+time.Millisecond))
	require.Equal(t, []error{nil, nil, nil}, acquireWithin(t, d, shortLease, names...))
}
