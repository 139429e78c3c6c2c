package redislock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/cleanup"
	"github.com/cogwheel-go/cogwheel/internal/contexts"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/joined"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/sender"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// poolSize is enough for four renewals and a release at a time, and for a connection that hangs.
const poolSize = 8

// Client takes locks on one Redis. Make one per process and Redis with New. It is safe for concurrent use.
type Client struct {
	rdb       redis.UniversalClient // for calls of callers
	base      redis.UniversalClient // what rdb is or embeds: knows the nodes
	dedicated *redisconn.Dedicated  // for renewals and releases in the background

	sender *sender.Sender

	wheel      *wheel.Wheel
	logger     *slog.Logger
	monitor    monitor
	origin     time.Time // from which the times of locks count
	defaults   *sharedConfig
	lastConfig atomic.Pointer[sharedConfig] // the last one made
	poll       time.Duration
	ids        *ids
	channels   *waitqueue.Channels
	queues     *waitqueue.Group[queueKey, *acquisition]
	renewer    *renewal.Renewer
	cleanup    *cleanup.Queue[pendingRelease]
	gate       gate.Gate // entered by all that talks to Redis, so that Close knows when the last of it has ended

	mu      sync.Mutex            // guards what follows; all else is set by New and never changes
	holders map[heldName]*Lock    // locks of exclusive kinds
	held    map[string]*Lock      // all others, by their ids
	limits  map[*Lock]wheel.Timer // of those with WithMaxHold
	leases  map[shard]*renewal.Destination

	// See notify.go.
	stopListening func() // ends the subscription to the Client's channel; nil if there is none
	listenChanges bool   // the subscription is about to begin or to end, by listenTimer
	listenTimer   wheel.Timer
	unchecked     map[string]*Lock // holds that a message named and that are still to be checked, by their ids
	checking      bool             // checkHolds runs
}

// New returns a Client that uses rdb: a *redis.Client for one server or Sentinel, a *redis.ClusterClient, a
// *redis.Ring, or a struct that embeds one of them. It does not talk to Redis and starts no goroutine. Its
// errors match cogwheel.ErrInvalid. The caller keeps rdb open until Close has returned.
//
// Calls go through rdb with its pool, hooks, timeouts and retries. A call returns when its context ends,
// while its request goes on until rdb's ReadTimeout; so a client whose ReadTimeout is disabled (-1 or -2) is
// refused. Renewals and releases in the background use a few connections of their own, made from the same
// options, so that a busy pool does not delay them; hooks of rdb do not see them. A client of another type
// works too: its nodes are not known, so it has no connections of its own, and New logs a warning.
func New(rdb redis.UniversalClient, opts ...Option) (*Client, error) {
	if err := argument.Client(rdb); err != nil {
		return nil, err
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	base := redisconn.Base(rdb)
	if redisconn.Endless(base) {
		return nil, argument.Error("client", "without a ReadTimeout", "calls to a Redis that hangs would never end")
	}
	if base == nil {
		base = rdb
		cfg.logger.Warn("redislock: the client is of a type whose nodes are not known: "+
			"calls travel alone, renewals share its connections, "+
			"and waiters are not woken on sharded channels", "type", fmt.Sprintf("%T", rdb))
	}
	c := &Client{
		rdb:       rdb,
		base:      base,
		wheel:     cfg.wheel,
		logger:    cfg.logger,
		monitor:   monitor{hooks: cfg.hooks},
		poll:      cfg.poll,
		ids:       &ids{client: newUUID()},
		channels:  waitqueue.NewChannels(base, cfg.wheel, cfg.channels),
		held:      make(map[string]*Lock),
		limits:    make(map[*Lock]wheel.Timer),
		origin:    cfg.wheel.Now(),
		holders:   make(map[heldName]*Lock),
		leases:    make(map[shard]*renewal.Destination),
		unchecked: make(map[string]*Lock),
	}
	c.gate.Workers = gate.NewWorkers(cfg.wheel)
	c.sender = sender.New(sender.Config{
		Client: rdb, Base: base, Retries: redisconn.Retries(base), Wheel: cfg.wheel, Workers: c.gate.Workers,
	})
	if c.renewer, err = renewal.New(cfg.wheel, renewal.WithLogger(cfg.logger),
		renewal.WithHooks(c.monitor.renewalHooks())); err != nil {
		return nil, err
	}
	if err = c.setLockDefaults(cfg.locks); err != nil {
		return nil, err
	}
	c.queues = c.newQueues()
	c.dedicated = redisconn.NewDedicated(base, cfg.wheel, poolSize)
	c.cleanup = c.newCleanup()
	return c, nil
}

// Mutex returns the lock of that name. It does not talk to Redis. The key in Redis is the name itself, as in
// Redisson: the lock excludes services in Java that use getLock(name).
//
// A name is 1 to 65536 bytes. If it contains a brace, it must have a hash tag such as {user:7}, text between
// its first { and the next }, by which the keys made from it share a cluster slot. Err and every method
// return a *cogwheel.InvalidError for a bad name or option.
func (c *Client) Mutex(name string, opts ...LockOption) *Mutex {
	return c.newMutex(plain, name, opts)
}

func (c *Client) newMutex(k *kind, name string, opts []LockOption) *Mutex {
	m := &Mutex{client: c, kind: k, name: name}
	if m.err = checkName(name); m.err == nil {
		m.config, m.err = c.lockConfig(opts)
	}
	return m
}

// Close releases the locks that are held, ends waiting calls with ErrClosed, and blocks until nothing of the
// Client is running, or until ctx ends. In that case its connections are closed all the same, and calls in
// flight end by their timeouts. If ctx has ended before, Close goes on for up to a second, so a deferred
// Close frees the locks whatever its context.
//
// Close returns an error if time ran out or locks could not be released; it names their number, and they end
// with their leases. A further Close only waits for calls in flight. Close leaves the wheel and rdb open.
// Others may lock what Close has released, so call it when the work that holds locks has ended.
func (c *Client) Close(ctx context.Context) error {
	if ctx == nil {
		return argument.Nil("context")
	}
	ctx, cancel := contexts.ToClose(ctx, c.wheel)
	defer cancel()
	if !c.gate.Close() {
		return c.gate.Wait(ctx)
	}
	// Waiters are told first; what they are granted all the same comes back before the cleanup is closed.
	err := c.queues.Close(ctx, ErrClosed)
	c.mu.Lock()
	c.listenTimer.Stop()
	held := slices.Collect(maps.Values(c.held))
	held = slices.AppendSeq(held, maps.Values(c.holders))
	for _, limit := range c.limits {
		limit.Stop()
	}
	clear(c.limits)
	clear(c.held)
	clear(c.holders)
	c.mu.Unlock()
	for _, l := range held {
		switch {
		case l.lease.Close(ErrClosed):
			l.releaseLater(0, false)
			c.monitor.ended(l, ErrClosed)
		case errors.Is(l.Err(), ErrLost): // since the gate was closed
			c.monitor.ended(l, l.Err())
		}
	}
	err = joined.Errors(
		err,
		c.gate.Wait(ctx), // nothing is left that would add to the cleanup
		c.closeCleanup(ctx),
		c.renewer.Close(ctx),
		c.channels.Close(ctx),
		c.dedicated.Close(ctx),
	)
	c.gate.Workers.Close()
	if err != nil {
		return fmt.Errorf("redislock: close: %w", err)
	}
	return nil
}

// ids makes the ids of acquisitions. The Clients of a Quorum share one, and so have channels of one name.
type ids struct {
	client string // a UUID
	n      atomic.Uint64
}

// next returns the id of a new acquisition. It is unique for ever, so that no call about an old hold can touch a
// new one. To Redisson it is an opaque field of the lock's hash.
func (ids *ids) next() string {
	id := make([]byte, 0, 64)
	id = append(id, ids.client...)
	id = append(id, ':')
	return string(strconv.AppendUint(id, ids.n.Add(1), 10))
}

// shard is a group of locks that are renewed together: of one kind, on the node that was their master when
// the first of them was taken. A node that hangs delays the renewals of its own locks only. Renewals find the
// present master of each key by themselves.
type shard struct {
	kind *kind
	node string
}

// destination returns where a lock is renewed.
func (c *Client) destination(req *request) (d *renewal.Destination, err error) {
	s := shard{kind: req.kind()}
	s.node, _ = redisconn.NodeAddr(c.base, req.name())
	c.mu.Lock()
	defer c.mu.Unlock()
	if d = c.leases[s]; d == nil {
		d, err = c.renewer.Destination(newRenewBackend(s.kind, c))
		c.leases[s] = d
	}
	return d, err
}

// keep enters a lock that was granted.
func (c *Client) keep(l *Lock) {
	c.mu.Lock()
	if l.kind().exclusive {
		if before := c.holders[l.mutex.heldName()]; before != nil { // it was lost, and does not know yet
			c.held[before.id] = before
		}
		c.holders[l.mutex.heldName()] = l
	} else {
		c.held[l.id] = l
	}
	c.followHoldsLocked()
	c.mu.Unlock()
	if l.lease.Err() != nil { // lost before it was entered
		c.drop(l)
	}
}

// drop removes a lock that is not held any more.
func (c *Client) drop(l *Lock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch l {
	case c.holders[l.mutex.heldName()]:
		delete(c.holders, l.mutex.heldName())
	case c.held[l.id]:
		delete(c.held, l.id)
	}
	c.followHoldsLocked()
	if limit, ok := c.limits[l]; ok {
		limit.Stop()
		delete(c.limits, l)
	}
	if c.monitor.as == KindQuorum {
		c.monitor.forgetPart(l)
	}
}

// limit has a lock end after its WithMaxHold.
func (c *Client) limit(l *Lock) {
	d := l.mutex.config.maxHold
	if d == 0 {
		return
	}
	reached := func(stopped error) {
		if stopped == nil { // otherwise the lease ends too, as lost
			l.maxHoldReached()
		}
	}
	c.mu.Lock()
	var err error
	if c.held[l.id] == l || c.holders[l.mutex.heldName()] == l {
		c.limits[l], err = wheelentry.AfterFunc(c.wheel, d, reached)
	}
	c.mu.Unlock()
	if err != nil && l.expel(fmt.Errorf("%w: %w", renewal.ErrUnwatched, err)) {
		c.logger.LogAttrs(context.Background(), slog.LevelWarn,
			"redislock: the wheel does not watch for how long a lock is held, released",
			slog.String("name", l.name()), slog.Any("error", err))
	}
}

// since returns how long ago an instant was that is given as time since origin.
func (c *Client) since(at time.Duration) time.Duration { return c.wheel.Now().Sub(c.origin) - at }

// newUUID returns a version 4 UUID in text form.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
