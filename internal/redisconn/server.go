package redisconn

import (
	"context"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// server is a destination of background calls. Its connections are replaced all together: new calls use the new pool,
// and the old pool is closed when its calls have ended.
type server struct {
	dedicated *Dedicated
	client    func() redis.UniversalClient // makes a client, which dials nothing yet
	open      func() (*pool, error)        // makes a pool that is ready; nil if the pool is never replaced
	cluster   bool                         // the pool is replaced only after a failure
	opening   query                        // of open

	mu     sync.Mutex
	pool   *pool          // nil before the first call
	old    map[*pool]bool // replaced pools with calls in flight
	closed bool
}

// pool is a redis client with its connections. server.mu guards failed and calls; the rest does not change.
type pool struct {
	client redis.UniversalClient
	since  time.Time // before its first connection was made
	failed bool      // a call over it has failed
	calls  int       // in flight
}

// newServer returns the destination of a client of one server with the given options. It dials nothing.
func (d *Dedicated) newServer(opt redis.Options) *server {
	dial := opt.Dialer
	opt.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(d.ctx, cancel)() // go-redis does not end a dial when its client is closed
		return dial(ctx, network, addr)
	}
	return &server{
		dedicated: d, opening: query{dedicated: d},
		client: func() redis.UniversalClient {
			opt := opt // NewClient changes it
			return redis.NewClient(&opt)
		},
		open: func() (*pool, error) { return d.connect(opt) },
		old:  make(map[*pool]bool),
	}
}

// connect returns a pool with a new connection, over which the server has answered.
func (d *Dedicated) connect(opt redis.Options) (*pool, error) {
	var ready atomic.Bool // a connection is set up
	onConnect := opt.OnConnect
	opt.OnConnect = func(ctx context.Context, c *redis.Conn) error {
		if onConnect != nil {
			if err := onConnect(ctx, c); err != nil {
				return err
			}
		}
		ready.Store(true)
		return nil
	}
	p := &pool{since: d.wheel.Now()}
	client := redis.NewClient(&opt)
	// A user without the right to PING gets an answer too.
	if err := client.Ping(d.ctx).Err(); err != nil && !(ready.Load() && Refused(err)) {
		_ = client.Close()
		return nil, err
	}
	p.client = client
	return p, nil
}

// newCluster returns the destination of a cluster client. It dials nothing.
func (d *Dedicated) newCluster(c *redis.ClusterClient) *server {
	opt := *c.Options()
	opt.ContextTimeoutEnabled = true
	opt.PoolSize, opt.MinIdleConns, opt.MaxActiveConns = d.poolSize, 0, 0
	opt.PipelinePoolSize = -1 // pipelines are all there is
	client := func() *redis.ClusterClient {
		opt := opt // NewClusterClient changes it
		return redis.NewClusterClient(&opt)
	}
	open := func() (*pool, error) {
		since, c := d.wheel.Now(), client()
		// It asks a node for the masters. Until one has answered, calls stay with the pool that they have.
		if _, err := c.MasterForKey(d.ctx, ""); err != nil {
			_ = c.Close()
			return nil, err
		}
		return &pool{client: c, since: since}, nil
	}
	return &server{
		dedicated: d, cluster: true, opening: query{dedicated: d}, old: make(map[*pool]bool),
		client: func() redis.UniversalClient { return client() }, open: open,
	}
}

// run sends calls in a batch. Calls that fail although the server may be well are sent again over new connections.
func (s *server) run(ctx context.Context, maxAge time.Duration, calls []scripts.Call) []*redis.Cmd {
	if s.open == nil {
		return scripts.RunBatch(ctx, s.client(), calls)
	}
	p := s.enter(ctx, maxAge)
	cmds := scripts.RunBatch(ctx, p.client, calls)
	s.leave(p)
	var failed []int
	for i, cmd := range cmds {
		if misled(cmd.Err()) {
			failed = append(failed, i)
		}
	}
	if len(failed) == 0 {
		return cmds
	}
	s.mu.Lock()
	p.failed = true
	s.mu.Unlock()
	Reload(p.client) // another node of the cluster may be the master
	if ctx.Err() != nil {
		return cmds
	}
	other := s.enterOther(ctx, p, maxAge)
	if other == nil {
		return cmds
	}
	defer s.leave(other)
	for i, cmd := range scripts.RunBatch(ctx, other.client, pick(calls, failed)) {
		cmds[failed[i]] = cmd
	}
	return cmds
}

// misled reports whether a call failed in a way for which its connection may be the cause: it has no answer, or a
// server answered that is no primary any more.
func misled(err error) bool {
	return err != nil && (!Refused(err) || strings.Contains(err.Error(), "READONLY"))
}

// enter returns the pool for a call. If the pool is older than maxAge, or a call over it has failed, enter tries to
// replace it first.
func (s *server) enter(ctx context.Context, maxAge time.Duration) *pool {
	now := s.dedicated.wheel.Now()
	s.mu.Lock()
	if s.pool == nil {
		s.pool = &pool{client: s.client(), since: now}
		if s.closed {
			_ = s.pool.client.Close()
		}
	}
	p, failed, age := s.pool, s.pool.failed, now.Sub(s.pool.since)
	s.mu.Unlock()
	replace := func() { s.replace(p) }
	switch {
	case s.cluster:
		if failed && age > maxAge/2 { // a new pool connects to all masters
			s.opening.start(maxAge/2, replace) // nobody waits: a node that hangs must not delay others
		}
	case failed:
		s.opening.run(ctx, 0, patience, replace)
	case age > maxAge:
		s.opening.run(ctx, maxAge, patience, replace)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pool.calls++
	return s.pool
}

// enterOther returns a pool for calls that failed on p, or nil if there is no other.
func (s *server) enterOther(ctx context.Context, p *pool, maxAge time.Duration) *pool {
	s.mu.Lock()
	replaced := s.pool != p
	s.mu.Unlock()
	switch {
	case replaced:
	case !s.cluster:
		s.opening.run(ctx, 0, longPatience, func() { s.replace(p) })
	case s.dedicated.wheel.Now().Sub(p.since) > maxAge/2:
		s.opening.run(ctx, maxAge/2, longPatience, func() { s.replace(p) })
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pool == p {
		return nil
	}
	s.pool.calls++
	return s.pool
}

// replace opens a pool and takes it for later calls, unless p has been replaced.
func (s *server) replace(p *pool) {
	fresh, err := s.open()
	if err != nil {
		return
	}
	unused := fresh
	s.mu.Lock()
	if s.pool == p && !s.closed {
		s.pool, unused = fresh, p
		if p.calls > 0 {
			s.old[p], unused = true, nil
		}
	}
	s.mu.Unlock()
	if unused != nil {
		_ = unused.client.Close()
	}
}

// leave ends a call over a pool.
func (s *server) leave(p *pool) {
	s.mu.Lock()
	p.calls--
	unused := p.calls == 0 && s.old[p]
	if unused {
		delete(s.old, p)
	}
	s.mu.Unlock()
	if unused {
		s.dispose(p)
	}
}

// dispose closes a pool in the background: go-redis waits for the set-up of a connection, which may hang.
func (s *server) dispose(p *pool) {
	closes := func() { _ = p.client.Close() }
	if !s.dedicated.start(closes) {
		closes()
	}
}

// end returns the pools, which the caller closes. Calls in flight fail then.
func (s *server) end() (pools []*pool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.open == nil {
		return nil
	}
	s.closed = true
	if s.pool != nil {
		pools = append(pools, s.pool)
	}
	pools = slices.AppendSeq(pools, maps.Keys(s.old))
	clear(s.old)
	return pools
}
