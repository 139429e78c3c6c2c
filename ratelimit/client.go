package ratelimit

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Client limits rates through one Redis. Make one per process and Redis with New; it is safe for concurrent use.
//
// Ground rules. Everything is set by New and never changes, except what mu guards: the registries, whose lanes Close has to
// empty.
type Client struct {
	rdb     redis.UniversalClient
	wheel   *wheel.Wheel
	logger  *slog.Logger
	began   time.Time
	idleFor time.Duration // how long a limit is remembered that nobody uses
	breaker breaker
	senders senders
	logs    *registry
	stats   counters
	gate    calls.Gate // counts what may talk to Redis

	mu         sync.Mutex
	registries []*registry
	kinds      map[kind]*registry
}

// New returns a Client that limits through rdb. It does not talk to Redis and starts no goroutine. A call that Redis does
// not answer ends by rdb's own timeouts, so leave its ReadTimeout on. A caller whose deadline passes is let go at once, and so
// is one whose context is cancelled, but for him who has just begun to talk to a Redis that was well until then: he may be
// kept for rdb's WriteTimeout and ReadTimeout. The caller keeps rdb open until Close has returned.
func New(rdb redis.UniversalClient, opts ...Option) (*Client, error) {
	if rdb == nil || reflect.ValueOf(rdb).Kind() == reflect.Pointer && reflect.ValueOf(rdb).IsNil() {
		return nil, &InvalidError{"client", "nil", "must not be nil"}
	}
	cfg := config{logger: slog.New(slog.DiscardHandler), failures: 3, probe: defaultProbe}
	for i, o := range opts {
		if o == nil {
			return nil, &InvalidError{"option", i, "is nil"}
		}
		if err := o.apply(&cfg); err != nil {
			return nil, err
		}
	}
	if cfg.wheel == nil {
		cfg.wheel = wheel.Default()
	}
	c := &Client{
		rdb:     rdb,
		wheel:   cfg.wheel,
		logger:  cfg.logger,
		began:   time.Now(),
		idleFor: time.Minute,
		kinds:   map[kind]*registry{},
	}
	c.breaker = breaker{client: c, policy: cfg.policy, threshold: int32(min(cfg.failures, 1<<30)), probe: cfg.probe}
	c.senders.client = c
	c.senders.patience = patience(rdb)
	c.logs = c.registry(slidingLog{client: c}, keyedConfig{})
	return c, nil
}

// Close ends the waits with ErrClosed and returns when nothing of the Client is under way, or when ctx ends. Closing twice
// is harmless. The wheel and rdb stay the caller's.
func (c *Client) Close(ctx context.Context) error {
	if c.gate.Close() {
		c.breaker.stop()
	}
	c.mu.Lock()
	registries := c.registries
	c.mu.Unlock()
	for _, r := range registries {
		if err := r.line.Close(ctx, ErrClosed); err != nil {
			return fmt.Errorf("ratelimit: close: %w", err)
		}
	}
	if err := c.gate.Wait(ctx); err != nil {
		return fmt.Errorf("ratelimit: close: %w", err)
	}
	return nil
}

// enter counts something that may talk to Redis, until leave.
func (c *Client) enter() error {
	if !c.gate.Enter() {
		return ErrClosed
	}
	return nil
}

func (c *Client) leave() { c.gate.Leave() }

// inside runs f, which talks to Redis, unless the Client is closed.
func (c *Client) inside(f func() error) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	return f()
}

// registry holds the lanes of one engine. A lane lives while somebody uses it or while it remembers something.
type registry struct {
	client *Client
	engine engine
	config keyedConfig
	line   *waitqueue.Group[request]
	out    *sender // of all keys, if there is one node
	seed   maphash.Seed
	shards [16]shard
}

type shard struct {
	mu    sync.Mutex
	lanes map[string]*lane
}

// kind is what Keyed limiters have in common that count together.
type kind struct {
	prefix string
	limit  Limit
	config keyedConfig
}

// keyed returns the registry of a kind: limiters of one kind share scripts, waiting lines and what is known.
func (c *Client) keyed(k kind, e engine) *registry {
	c.mu.Lock()
	r := c.kinds[k]
	c.mu.Unlock()
	if r != nil {
		return r
	}
	r = c.registry(e, k.config)
	c.mu.Lock()
	defer c.mu.Unlock()
	if first := c.kinds[k]; first != nil {
		return first
	}
	c.kinds[k] = r
	return r
}

func (c *Client) registry(e engine, cfg keyedConfig) *registry {
	r := &registry{client: c, engine: e, config: cfg, seed: maphash.MakeSeed()}
	for i := range r.shards {
		r.shards[i].lanes = map[string]*lane{}
	}
	_, single := c.rdb.(*redis.Client)
	if _, shared := e.(batched); single && shared {
		r.out = c.senders.of(e, "")
	}
	r.line = r.newLine()
	c.mu.Lock()
	c.registries = append(c.registries, r)
	c.mu.Unlock()
	if c.gate.Closed() { // and Close may not have seen it
		_ = r.line.Close(context.Background(), ErrClosed) // nobody waits there yet
	}
	return r
}

func (r *registry) shard(key string) *shard {
	return &r.shards[maphash.String(r.seed, key)%uint64(len(r.shards))]
}

// use returns the key's lane, which stays until release.
func (r *registry) use(key string) *lane {
	s := r.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes[key]
	if l == nil {
		out := r.out
		if out == nil {
			out = r.client.senders.of(r.engine, key)
		}
		l = &lane{client: r.client, engine: r.engine, key: key, out: out, extra: r.config.prefetch, within: r.config.within}
		s.lanes[key] = l
	}
	l.refs++
	return l
}

func (r *registry) release(l *lane) {
	s := r.shard(l.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.refs--; l.refs > 0 {
		return
	}
	if d := l.remembers(); d > 0 {
		l.refs++
		if _, err := r.client.wheel.AfterFunc(d, func() { r.release(l) }); err == nil {
			return
		}
		l.refs--
	}
	delete(s.lanes, l.key)
}

// Stats counts what a Client has done.
type Stats struct {
	Allowed  int64 // requests granted, also those that waited
	Denied   int64 // requests denied
	Local    int64 // of them, decided without asking Redis
	Degraded int64 // decisions of the policy, granted or denied
	Scripts  int64 // scripts sent for decisions
	Waiting  int64 // now
	Failures int64 // scripts that Redis did not answer
	Down     bool  // the policy decides now
}

type counters struct {
	allowed, denied, local, degraded, scripts, waiting, failures atomic.Int64
}

// Stats returns the counts so far. It does not block.
func (c *Client) Stats() Stats {
	s := &c.stats
	return Stats{
		s.allowed.Load(), s.denied.Load(), s.local.Load(), s.degraded.Load(), s.scripts.Load(),
		s.waiting.Load(), s.failures.Load(), c.breaker.down.Load(),
	}
}

func (c *Client) count(r Result) {
	if r.Allowed {
		c.stats.allowed.Add(1)
	} else {
		c.stats.denied.Add(1)
	}
	switch r.Source {
	case SourceLocal, SourcePrefetch:
		c.stats.local.Add(1)
	case SourceDegraded:
		c.stats.degraded.Add(1)
	}
}
