package redisconn

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Dedicated sends background calls, such as renewals, on up to poolSize separate connections for each server. So a busy
// pool of the caller's client does not delay them. A call ends with its context. Dedicated is safe for concurrent use.
//
// A background call goes where a new connection of the caller's client leads. An old connection may lead elsewhere: to
// a primary that was deposed and still takes writes, while the Sentinels, a virtual address or a proxy lead new
// connections to its successor. No address tells the two apart, because a proxy may hide both. So Dedicated uses a
// connection only for a part of the lease, see maxAge. While no new connection can be made, for example because the
// Sentinels are away or the password has changed, calls go on over the old ones.
//
// A call that fails on an old connection is sent again on a new one, because the connection may have been bad and not
// the server. So a background call may execute twice.
//
// A cluster client learns its masters from the answers of servers, so its copy keeps its connections until one fails. A
// Ring is asked for the shard of each call. A cluster client with ClusterSlots, such as that of
// redis.NewFailoverClusterClient, has no cluster: that function is asked for the master of each call. A client of
// another type is shared.
type Dedicated struct {
	rdb      redis.UniversalClient
	wheel    *wheel.Wheel
	poolSize int
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	running  sync.WaitGroup // goroutines
	whole    *server        // of a client whose calls all have one destination; else nil
	masters  *masters       // of a cluster client with ClusterSlots; else nil

	mu      sync.Mutex
	servers map[serverID]*server // of a client with several destinations
}

// serverID identifies a destination: a shard of a Ring, or the address of a master that ClusterSlots has named.
type serverID struct {
	shard *redis.Client
	addr  string
}

// NewDedicated returns a Dedicated for a client. It dials nothing yet, and starts no goroutine, as a client of go-redis
// may: a Dedicated that was not used needs no Close.
func NewDedicated(rdb redis.UniversalClient, w *wheel.Wheel, poolSize int) *Dedicated {
	d := &Dedicated{rdb: rdb, wheel: w, poolSize: poolSize, servers: make(map[serverID]*server)}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	switch c := rdb.(type) {
	case *redis.Client:
		d.whole = d.newServer(OwnOptions(c, poolSize))
	case *redis.Ring:
	case *redis.ClusterClient:
		if ask := c.Options().ClusterSlots; ask != nil {
			d.masters = &masters{cluster: c, ask: ask, query: query{dedicated: d}}
		} else {
			d.whole = d.newCluster(c)
		}
	default:
		d.whole = &server{dedicated: d, client: func() redis.UniversalClient { return rdb }}
	}
	return d
}

// Close closes the connections and waits until the goroutines have ended, or until ctx ends. A second Close waits
// again.
func (d *Dedicated) Close(ctx context.Context) error {
	d.mu.Lock()
	if d.ctx.Err() == nil {
		var pools []*pool
		if d.whole != nil {
			pools = d.whole.end()
		}
		for _, s := range d.servers {
			pools = append(pools, s.end()...)
		}
		for _, p := range pools {
			d.running.Go(func() { _ = p.client.Close() })
		}
		d.cancel() // nothing starts after this
	}
	d.mu.Unlock()
	idle := make(chan struct{})
	go func() {
		d.running.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// start runs f on a goroutine for which Close waits, unless Close was called.
func (d *Dedicated) start(f func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil {
		return false
	}
	d.running.Go(f)
	return true
}

// RunBatch is scripts.RunBatch on dedicated connections, for leases of the given length or longer. It may execute a
// call twice. A server that hangs delays only its own calls.
func (d *Dedicated) RunBatch(ctx context.Context, lease time.Duration, calls []scripts.Call) []*redis.Cmd {
	if d.whole != nil {
		return d.whole.run(ctx, d.maxAge(lease), calls)
	}
	cmds := make([]*redis.Cmd, len(calls))
	groups := make(map[*server][]int)
	for i, call := range calls {
		s, err := d.serverOf(ctx, lease, call.Keys[0])
		if err != nil {
			cmds[i] = redis.NewCmd(ctx)
			cmds[i].SetErr(err)
			continue
		}
		groups[s] = append(groups[s], i)
	}
	var sending sync.WaitGroup
	for s, indexes := range groups {
		sending.Go(func() {
			for j, cmd := range s.run(ctx, d.maxAge(lease), pick(calls, indexes)) {
				cmds[indexes[j]] = cmd
			}
		})
	}
	sending.Wait()
	return cmds
}

// pick returns the elements at the given indexes.
func pick[T any](all []T, indexes []int) []T {
	some := make([]T, len(indexes))
	for i, index := range indexes {
		some[i] = all[index]
	}
	return some
}

// maxAge returns the age from which a connection is replaced before its next use.
//
// A third of the lease is enough to keep a hold through the switch to another primary. The last renewal that the new
// primary has copied is at most a third of the lease older than the switch. The second one after that renewal is sent
// on a connection that was made after the switch, two thirds of a lease after the copied one.
//
// Where Sentinels or ClusterSlots tell of switches, they are asked more often, so that a switch is noticed at once.
func (d *Dedicated) maxAge(lease time.Duration) time.Duration {
	if c, ok := d.rdb.(*redis.Client); d.masters != nil || ok && IsSentinel(c) {
		return min(lease/30, time.Second)
	}
	return lease / 3
}

// serverOf returns the destination of a key.
func (d *Dedicated) serverOf(ctx context.Context, lease time.Duration, key string) (*server, error) {
	if d.masters == nil {
		shard, err := d.rdb.(*redis.Ring).GetShardClientForKey(key)
		if err != nil {
			return nil, err
		}
		return d.serverAt(serverID{shard: shard}, shard), nil
	}
	master, addr, err := d.masters.of(ctx, d.maxAge(lease), key)
	if err != nil {
		return nil, err
	}
	return d.serverAt(serverID{addr: addr}, master), nil
}

// serverAt returns a destination. Its connections have the options of like.
func (d *Dedicated) serverAt(id serverID, like *redis.Client) *server {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.servers[id]
	if s == nil {
		opt := OwnOptions(like, d.poolSize)
		if id.addr != "" {
			opt.Addr = id.addr
		}
		s = d.newServer(opt)
		d.servers[id] = s
		if d.ctx.Err() != nil {
			s.end()
		}
	}
	return s
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
