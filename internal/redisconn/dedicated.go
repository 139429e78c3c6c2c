package redisconn

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/joined"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Dedicated sends background calls, such as renewals, on up to poolSize separate connections for each server. So a busy
// pool of the caller's client does not delay them. A call ends with its context, and is not repeated, except that
// go-redis follows the redirections of a cluster. Dedicated is safe for concurrent use.
//
// A background call goes to the server to which the caller's client would send it now. A cluster client learns its
// masters from the answers of servers. A Ring is asked for the shard of each call. A client of Sentinels is notified of
// a failover, and closes its connections to the old primary, which may still be alive and take writes that no other
// client sees. Dedicated is not notified, so it has to ask: see [Dedicated.Follow]. A client of another type is shared.
type Dedicated struct {
	rdb      redis.UniversalClient
	wheel    *wheel.Wheel
	poolSize int
	shared   redis.UniversalClient // of a cluster, or of a client of unknown type; else nil
	ctx      context.Context       // ends with Close
	cancel   context.CancelFunc
	running  sync.WaitGroup // goroutines

	mu    sync.Mutex
	nodes map[*redis.Client]*clone // by the client of the server: rdb itself, or a shard of a Ring
}

// NewDedicated returns a Dedicated for a client. It dials nothing yet.
func NewDedicated(rdb redis.UniversalClient, w *wheel.Wheel, poolSize int) *Dedicated {
	d := &Dedicated{rdb: rdb, wheel: w, poolSize: poolSize, nodes: make(map[*redis.Client]*clone)}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	switch c := rdb.(type) {
	case *redis.Client, *redis.Ring:
	case *redis.ClusterClient:
		opt := *c.Options()
		opt.ContextTimeoutEnabled = true
		opt.PoolSize, opt.MinIdleConns, opt.MaxActiveConns = poolSize, 0, 0
		opt.PipelinePoolSize = -1 // pipelines are all there is
		d.shared = redis.NewClusterClient(&opt)
	default:
		d.shared = rdb
	}
	return d
}

// Close closes the connections and waits until the goroutines have ended, or until ctx ends. A second Close waits
// again.
func (d *Dedicated) Close(ctx context.Context) error {
	first := d.ctx.Err() == nil
	d.cancel()
	var errs []error
	if cluster, ok := d.shared.(*redis.ClusterClient); ok && first {
		errs = append(errs, cluster.Close())
	}
	d.mu.Lock()
	for _, n := range d.nodes {
		errs = append(errs, n.close())
	}
	d.mu.Unlock()
	idle := make(chan struct{})
	go func() {
		d.running.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-ctx.Done():
		errs = append(errs, ctx.Err())
	}
	return joined.Errors(errs...)
}

// Single returns the dedicated client if the caller's client has just one server, else nil.
func (d *Dedicated) Single() *redis.Client {
	if c, ok := d.rdb.(*redis.Client); ok {
		return d.clone(c).current()
	}
	return nil
}

// RunBatch is scripts.RunBatch on dedicated connections. A server that hangs delays only its own calls.
func (d *Dedicated) RunBatch(ctx context.Context, calls []scripts.Call) []*redis.Cmd {
	switch c := d.rdb.(type) {
	case *redis.Client:
		return scripts.RunBatch(ctx, d.clone(c).current(), calls)
	case *redis.Ring:
		return d.runOnShards(ctx, c, calls)
	}
	return scripts.RunBatch(ctx, d.shared, calls)
}

func (d *Dedicated) runOnShards(ctx context.Context, ring *redis.Ring, calls []scripts.Call) []*redis.Cmd {
	cmds := make([]*redis.Cmd, len(calls))
	shards := make(map[*redis.Client][]int)
	for i, call := range calls {
		shard, err := ring.GetShardClientForKey(call.Keys[0])
		if err != nil {
			cmds[i] = redis.NewCmd(ctx)
			cmds[i].SetErr(err)
			continue
		}
		shards[shard] = append(shards[shard], i)
	}
	var sending sync.WaitGroup
	for shard, indexes := range shards {
		sending.Go(func() {
			some := make([]scripts.Call, len(indexes))
			for j, i := range indexes {
				some[j] = calls[i]
			}
			for j, cmd := range scripts.RunBatch(ctx, d.clone(shard).current(), some) {
				cmds[indexes[j]] = cmd
			}
		})
	}
	sending.Wait()
	return cmds
}

// Reload is Reload for the dedicated client of a cluster.
func (d *Dedicated) Reload() {
	if d.shared != nil {
		Reload(d.shared)
	}
}

// followPatience bounds the wait for the Sentinels to name the primary.
const followPatience = 250 * time.Millisecond

// Follow asks the Sentinels for the primary, so that later calls go there. It does not ask again within a thirtieth of
// the lease, at most a second. While the Sentinels do not answer, calls go to the previous primary. For other clients
// Follow does nothing. It blocks for a round trip to a Sentinel and a connection, at most a quarter of a second, or
// until ctx ends.
func (d *Dedicated) Follow(ctx context.Context, lease time.Duration) {
	c, ok := d.rdb.(*redis.Client)
	if !ok || !IsSentinel(c) {
		return
	}
	known := d.clone(c).lookUp(min(lease/30, time.Second))
	if known == nil {
		return
	}
	ctx, cancel := d.wheel.WithTimeout(ctx, followPatience)
	defer cancel()
	select {
	case <-known:
	case <-ctx.Done():
	}
}

// sentinelAddr is the address in the options of redis.NewFailoverClient.
const sentinelAddr = "FailoverClient"

// IsSentinel reports whether a client asks Sentinels where the primary is.
func IsSentinel(c *redis.Client) bool { return c.Options().Addr == sentinelAddr }

// OwnOptions returns the options of a client for the server of c, with at most poolSize separate connections that are
// made as those of c are. The client does not repeat calls, ends them with their contexts, and has no hooks.
func OwnOptions(c *redis.Client, poolSize int) redis.Options {
	opt := *c.WithTimeout(c.Options().ReadTimeout).Options()
	opt.ContextTimeoutEnabled, opt.MaxRetries = true, -1
	opt.PoolSize, opt.MinIdleConns, opt.MaxActiveConns = poolSize, 0, 0
	opt.PipelinePoolSize = -1 // one pool for everything
	opt.ClientSideCacheConfig = nil
	opt.PushNotificationProcessor = nil // the copy's is registered with c
	return opt
}

func (d *Dedicated) clone(c *redis.Client) *clone {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.nodes[c]
	if n == nil {
		n = d.newClone(c)
		d.nodes[c] = n
	}
	return n
}

// clone has separate connections to the server of a client.
type clone struct {
	dedicated *Dedicated
	options   redis.Options

	mu      sync.Mutex
	client  *redis.Client
	addr    string        // of the server to which client has connected; empty before
	lookup  time.Time     // when the last lookup of the primary began
	pending chan struct{} // closed at the end of a lookup; nil without one
	closed  bool
}

func (d *Dedicated) newClone(c *redis.Client) *clone {
	n := &clone{dedicated: d, options: OwnOptions(c, d.poolSize)}
	n.renewLocked("")
	return n
}

func (n *clone) current() *redis.Client {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.client
}

func (n *clone) close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	n.closed = true
	return n.client.Close()
}

// renewLocked makes a client without connections, for the server at addr.
func (n *clone) renewLocked(addr string) {
	opt := n.options
	dial := opt.Dialer
	var client *redis.Client
	opt.Dialer = func(ctx context.Context, network, to string) (net.Conn, error) {
		conn, err := dial(ctx, network, to)
		if err == nil && opt.Addr == sentinelAddr {
			n.sawPrimary(client, conn.RemoteAddr().String())
		}
		return conn, err
	}
	client = redis.NewClient(&opt)
	n.client, n.addr = client, addr
}

// sawPrimary takes the address of the primary from a new connection, which client has made, or a lookup if client is
// nil. If the other connections of n.client lead elsewhere, it replaces n.client.
func (n *clone) sawPrimary(client *redis.Client, addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.closed, client != nil && client != n.client:
	case n.addr == "":
		n.addr = addr
	case n.addr != addr:
		old := n.client
		n.renewLocked(addr)
		n.dedicated.running.Go(func() { _ = old.Close() }) // calls in flight fail, and are sent again
	}
}

// lookUp starts a lookup of the primary, unless one began within maxAge. It returns a channel that is closed at the end
// of the lookup, or nil if there is nothing to wait for.
func (n *clone) lookUp(maxAge time.Duration) <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.pending != nil:
		return n.pending
	case n.closed, n.addr == "", time.Since(n.lookup) < maxAge:
		return nil
	}
	n.lookup = time.Now()
	pending := make(chan struct{})
	n.pending = pending
	n.dedicated.running.Go(func() {
		conn, err := n.options.Dialer(n.dedicated.ctx, "tcp", n.options.Addr)
		if err == nil {
			n.sawPrimary(nil, conn.RemoteAddr().String())
			_ = conn.Close()
		}
		n.mu.Lock()
		n.pending = nil
		n.mu.Unlock()
		close(pending)
	})
	return pending
}
