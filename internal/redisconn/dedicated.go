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

// Dedicated sends what is done apart from callers, such as renewals, on up to poolSize connections of its own
// for each server, so that a pool that is busy does not delay it. It does not outlast the contexts of
// calls, and repeats none, except that go-redis follows the redirections of a cluster. It is safe for concurrent use.
//
// Its calls go where those of the caller's client go at that time. A cluster client finds the masters by the
// servers' answers. A Ring knows its shards itself, and is asked for each call. A client of Sentinels is told
// of a failover and closes its connections to the old primary, which may be alive and take writes that no
// client else sees; Dedicated is not told, and so looks, by [Dedicated.Follow]. A client of another type is
// shared.
type Dedicated struct {
	rdb      redis.UniversalClient
	wheel    *wheel.Wheel
	poolSize int
	shared   redis.UniversalClient // of a cluster, or of a client of unknown type; else nil
	ctx      context.Context       // ends with Close
	cancel   context.CancelFunc
	looks    sync.WaitGroup

	mu    sync.Mutex
	nodes map[*redis.Client]*clone // of a single client, or of the shards of a Ring
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

// Close closes the connections and waits until nothing is under way, or until ctx ends. Closing again waits
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
		d.looks.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-ctx.Done():
		errs = append(errs, ctx.Err())
	}
	return joined.Errors(errs...)
}

// Single returns the connections to the one server of a client that has just one, else nil.
func (d *Dedicated) Single() *redis.Client {
	if c, ok := d.rdb.(*redis.Client); ok {
		return d.clone(c).current()
	}
	return nil
}

// RunBatch is scripts.RunBatch. A server that hangs delays its own calls only.
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

// Reload has a cluster client look for the masters anew.
func (d *Dedicated) Reload() {
	if d.shared != nil {
		Reload(d.shared)
	}
}

// followPatience bounds how long a call waits for the Sentinels to say where the primary is.
const followPatience = 250 * time.Millisecond

// Follow makes sure that calls from now on go to the primary that a client of Sentinels would connect to now,
// or not long ago as measured by the leases in question: a thirtieth of one, at most a second. While the
// Sentinels do not answer, calls go where they went. For other clients it does nothing. It blocks for a
// question to a Sentinel and a connection, at most a quarter of a second, or until ctx ends.
func (d *Dedicated) Follow(ctx context.Context, lease time.Duration) {
	c, ok := d.rdb.(*redis.Client)
	if !ok || !IsSentinel(c) {
		return
	}
	looked := d.clone(c).look(min(lease/30, time.Second))
	if looked == nil {
		return
	}
	ctx, cancel := d.wheel.WithTimeout(ctx, followPatience)
	defer cancel()
	select {
	case <-looked:
	case <-ctx.Done():
	}
}

// sentinelAddr is the address in the options of redis.NewFailoverClient.
const sentinelAddr = "FailoverClient"

// IsSentinel reports whether a client asks Sentinels where the primary is.
func IsSentinel(c *redis.Client) bool { return c.Options().Addr == sentinelAddr }

// OwnOptions returns the options of a client that goes where c goes, on at most poolSize connections of its own
// that are made as c's are. It neither repeats calls nor outlasts their contexts, and has no hooks.
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

// clone has connections of its own to the server of a client.
type clone struct {
	dedicated *Dedicated
	options   redis.Options

	mu      sync.Mutex
	client  *redis.Client
	addr    string        // where client has connected to; empty before it has
	looked  time.Time     // when the last look began
	looking chan struct{} // closed when it ends; nil while there is none
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
			n.saw(client, conn.RemoteAddr().String())
		}
		return conn, err
	}
	client = redis.NewClient(&opt)
	n.client, n.addr = client, addr
}

// saw learns where the primary is from a connection that of has made, or that was made to see it if of is
// nil. If the client's other connections lead elsewhere, it is replaced.
func (n *clone) saw(of *redis.Client, addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.closed, of != nil && of != n.client:
	case n.addr == "":
		n.addr = addr
	case n.addr != addr:
		old := n.client
		n.renewLocked(addr)
		n.dedicated.looks.Go(func() { _ = old.Close() }) // calls in flight fail, and are sent again
	}
}

// look begins to look where the primary is unless one began within maxAge. It returns a channel that is
// closed when that is known, nil if it is known already.
func (n *clone) look(maxAge time.Duration) <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.looking != nil:
		return n.looking
	case n.closed, n.addr == "", time.Since(n.looked) < maxAge:
		return nil
	}
	n.looked = time.Now()
	looking := make(chan struct{})
	n.looking = looking
	n.dedicated.looks.Go(func() {
		conn, err := n.options.Dialer(n.dedicated.ctx, "tcp", n.options.Addr)
		if err == nil {
			n.saw(nil, conn.RemoteAddr().String())
			_ = conn.Close()
		}
		n.mu.Lock()
		n.looking = nil
		n.mu.Unlock()
		close(looking)
	})
	return looking
}
