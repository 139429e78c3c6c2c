package redislock

import (
	"context"
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
	"github.com/cogwheel-go/cogwheel/internal/client"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/hold"
	"github.com/cogwheel-go/cogwheel/internal/line"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/signals"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// poolSize is enough for four renewals and a release at a time, and for a connection that hangs.
const poolSize = 8

// Client acquires locks on one Redis deployment. Create one Client per process and deployment with New. It is
// safe for concurrent use.
type Client struct {
	redis      *client.Leases
	longest    hold.Longest // lease or extension that a caller asked for
	wheel      *wheel.Wheel
	logger     *slog.Logger
	monitor    monitor
	clock      client.Clock // of the times of locks
	holding    hold.Client
	defaults   *sharedConfig
	lastConfig atomic.Pointer[sharedConfig] // the configuration made last
	poll       time.Duration
	ids        *ids
	lines      *line.Lines[queueKey]
	queues     *waitqueue.Group[queueKey, *acquisition]
	cleanup    *cleanup.Queue[pendingRelease]
	gate       gate.Gate // entered by everything that talks to Redis, so that Close can wait for its end

	mu      sync.Mutex                 // guards the fields below; all others are set by New and never change
	holders map[string]*held           // locks of exclusive kinds, by their names
	held    map[string]*held           // all others, by their ids
	limits  map[*held]wheel.Timer      // timers of the locks with WithMaxHold
	yields  map[heldName]time.Duration // until when the Client asks for no lock that it yields; see yield
	leases  map[shard]*renewal.Destination

	// See notify.go.
	stopListening func() // ends the subscription to the Client's channel; nil if there is none
	listenChanges bool   // listenTimer is about to begin or end the subscription
	listenTimer   wheel.Timer
	unchecked     map[*held]bool // holds to be checked
	checking      bool           // checkHolds runs
}

// New returns a Client that uses rdb: a *redis.Client for one server, Sentinel or proxy, a
// *redis.ClusterClient, a *redis.Ring, or a struct that embeds one of these. New does not connect to Redis and
// starts no goroutine. Its errors match cogwheel.ErrInvalid. The caller must keep rdb open until Close has
// returned.
//
// Calls use rdb with its pool, hooks, timeouts and retries. A call returns when its context ends; a command
// that is still in flight then ends after the ReadTimeout of rdb. New refuses a client whose ReadTimeout is
// disabled (-1 or -2).
//
// Renewals and releases in the background use a few additional connections with the options of rdb, so a busy
// pool does not delay them; hooks of rdb do not see them. While the Client holds locks, these connections are
// replaced each second with Sentinels, otherwise each third of the lease, to follow a failover whose old primary
// is alive. A client of any other type works too, but the Client
// does not know its nodes: New logs a warning, renewals and releases use the connections of rdb, and
// [WithReplicas] is refused.
func New(rdb redis.UniversalClient, opts ...Option) (*Client, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	return newClient(rdb, cfg)
}

// newClient makes a Client from a valid configuration.
func newClient(rdb redis.UniversalClient, cfg config) (c *Client, err error) {
	c = &Client{
		wheel:     cfg.Wheel,
		logger:    cfg.Logger,
		monitor:   monitor{hooks: cfg.hooks, logger: cfg.Logger, failures: signals.Failures{Closed: ErrClosed}},
		poll:      cfg.Poll,
		ids:       &ids{client: client.NewUUID()},
		held:      make(map[string]*held),
		limits:    make(map[*held]wheel.Timer),
		yields:    make(map[heldName]time.Duration),
		clock:     client.NewClock(cfg.Wheel),
		holders:   make(map[string]*held),
		leases:    make(map[shard]*renewal.Destination),
		unchecked: make(map[*held]bool),
	}
	c.holding = hold.Client{
		Wheel: c.wheel, Gate: &c.gate, Lost: ErrLost, NotHeld: ErrNotHeld, Closed: ErrClosed,
	}
	c.redis, err = client.NewLeases(&cfg.Options, rdb, &c.gate, poolSize, c.monitor.renewalHooks())
	if err != nil {
		return nil, err
	}
	if !c.redis.Known {
		c.logger.Warn("redislock: the client is of a type whose nodes are not known: "+
			"calls travel alone, renewals share its connections, "+
			"and waiters are not woken on sharded channels", "type", fmt.Sprintf("%T", rdb))
	}
	if err = c.setLockDefaults(cfg.locks); err != nil {
		return nil, err
	}
	c.lines = c.newLines()
	c.queues = c.newQueues()
	c.cleanup = c.newCleanup()
	return c, nil
}

// Mutex returns the lock with the given name. It does not talk to Redis. The key in Redis is the name, as in
// Redisson, so the lock excludes services in Java that use getLock(name).
//
// A name has 1 to 65536 bytes. A name that contains a brace must contain a hash tag such as {user:7}: text
// between its first { and the next }. All keys of a lock must be in one cluster slot, and the tag selects it.
// If the name or an option is invalid, Err and all methods return a *cogwheel.InvalidError.
func (c *Client) Mutex(name string, opts ...LockOption) *Mutex {
	return c.newMutex(plain, name, opts)
}

func (c *Client) newMutex(k *kind, name string, opts []LockOption) *Mutex {
	config, err := c.lockConfig(opts)
	if err == nil && config.stringKey && k == plain {
		k = stringKind
	}
	switch wrong := client.CheckName(argument, name); {
	case wrong != nil:
		err = wrong
	case err != nil:
	case config.stringKey && k != stringKind:
		err = errStringKey
	case config.minHold > 0 && k != plain:
		err = errMinHold
	}
	if err != nil {
		config = &sharedConfig{client: c, err: err}
	}
	return &Mutex{kind: k, name: name, config: config}
}

// Close releases all held locks as Unlock does, ends waiting calls with ErrClosed, and blocks until the Client has
// stopped working or ctx ends; while Redis does not answer, for a second more than the longest lease or extension that
// the Client has asked for. Give it a ctx with a timeout. Other processes may acquire the released locks at once, so
// call Close when the work that holds them has ended. It stops neither the wheel nor rdb.
//
// If ctx ends first, the error matches ctx.Err(), and calls in flight end by their timeouts. If ctx has already ended
// when Close is called, Close takes up to a second, so that a deferred Close releases the locks whatever its context.
// At the end of that second or of the bound above, the error matches context.DeadlineExceeded. If locks could not be
// released, it has their number and wraps the last error of Redis; they end with their leases. A release that Redis
// refuses for good is only logged. Further calls wait for calls in flight, and return nil or the error of their ctx.
func (c *Client) Close(ctx context.Context) error {
	if ctx == nil {
		return argument.Nil("context")
	}
	ctx, cancel := hold.ToClose(ctx, c.wheel, c.longest.Load())
	defer cancel()
	if !c.gate.Close() {
		return c.gate.Wait(ctx)
	}
	// Waiters first: a lock that is granted to one all the same comes back before the cleanup is closed.
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
	for _, h := range held {
		if !h.EndInside(h, ErrClosed, 0) && errors.Is(h.Err(), ErrLost) { // lost since the gate was closed
			h.Report(h.Err())
		}
	}
	// Nothing adds to the cleanup when no call is in flight.
	return c.redis.Close(ctx, err, c.gate.Wait(ctx), c.closeCleanup(ctx))
}

// ids makes the ids of acquisitions. The Clients of a Quorum share one, and with it the channel for their
// holders.
type ids struct {
	client string // a UUID
	n      atomic.Uint64
}

// next returns the id of a new acquisition. It is unique for ever, so a call for an old hold never affects a
// new hold. To Redisson it is an opaque field of the lock's hash.
func (ids *ids) next() string {
	id := make([]byte, 0, 64)
	id = append(id, ids.client...)
	id = append(id, ':')
	return string(strconv.AppendUint(id, ids.number(), 10))
}

// number returns a number that no other id has.
func (ids *ids) number() uint64 { return ids.n.Add(1) }

// shard is a group of locks that are renewed together: locks of one kind whose master was the same node when
// the first of them was acquired. A node that hangs delays only the renewals of its own locks. A renewal is
// sent to the present master of its key, whatever the shard says.
type shard struct {
	kind *kind
	node string
}

// destination returns the destination that renews a lock.
func (c *Client) destination(of *claim) (d *renewal.Destination, err error) {
	s := shard{kind: of.kind()}
	s.node, _ = redisconn.NodeAddr(c.redis.Base, of.name())
	c.mu.Lock()
	defer c.mu.Unlock()
	if d = c.leases[s]; d == nil {
		d, err = c.redis.Renewer.Destination(&renewBackend{s.kind, c.redis})
		c.leases[s] = d
	}
	return d, err
}

// holderLocked returns the hold of a lock of an exclusive kind, or nil.
func (c *Client) holderLocked(k *kind, name string) *held {
	if h := c.holders[name]; h != nil && h.kind() == k {
		return h
	}
	return nil
}

// keep registers a lock that was granted.
func (c *Client) keep(h *held) {
	c.mu.Lock()
	if h.kind().exclusive {
		if before := c.holders[h.name()]; before != nil { // that lock is lost, and has not noticed yet
			c.held[before.id] = before
		}
		c.holders[h.name()] = h
	} else {
		c.held[h.id] = h
	}
	c.followHoldsLocked()
	c.mu.Unlock()
	if h.Err() != nil { // lost before it was registered
		c.drop(h)
	}
}

// drop removes a lock that is no longer held.
func (c *Client) drop(h *held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch h {
	case c.holders[h.name()]:
		delete(c.holders, h.name())
	case c.held[h.id]:
		delete(c.held, h.id)
	}
	c.followHoldsLocked()
	if limit, ok := c.limits[h]; ok {
		limit.Stop()
		delete(c.limits, h)
	}
	if c.monitor.as == KindQuorum {
		c.monitor.forgetPart(h)
	}
}

// limit starts the timer of WithMaxHold, if the lock has one, with the time that is left.
func (c *Client) limit(h *held, left time.Duration) {
	if h.mutex.config.maxHold == 0 {
		return
	}
	reached := func(stopped error) {
		if stopped == nil {
			h.maxHoldReached()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[h.id] == h || c.holders[h.name()] == h {
		c.limits[h], _ = wheelentry.AfterFunc(c.wheel, max(left, 0), reached) // a wheel that is stopped ends the lease
	}
}
