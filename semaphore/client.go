package semaphore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/sender"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	maxBatch     = 100  // requests in one script
	maxFairBatch = 1000 // requests of one process that wait in Redis for a fair semaphore
	renewalConns = 4    // connections for renewals; each carries one pipeline at a time

	recordMillis = 60_000     // how long Redis keeps the result of an edit
	fenceMillis  = 86_400_000 // how long Redis keeps the last token; of a Semaphore an hour less at times
)

// Client acquires permits of semaphores in one Redis deployment. Create one Client per process and deployment
// with New. It is safe for concurrent use.
type Client struct {
	// Set by New. Each is safe for concurrent use or never changes.
	rdb        redis.UniversalClient // carries the calls of callers
	base       redis.UniversalClient // the client of a known type that rdb is or embeds; else rdb
	sender     *sender.Sender
	dedicated  *redisconn.Dedicated // carries renewals
	wheel      *wheel.Wheel
	logger     *slog.Logger
	monitor    monitor
	poll       time.Duration
	idleMillis int64  // the idle expiry, ms; 0 without
	owner      string // identifies this process to Redis, 32 hex digits
	channels   *waitqueue.Channels
	renewer    *renewal.Renewer
	leases     *renewal.Destination // of plain semaphores
	fairs      *renewal.Destination // of fair ones
	cleanup    *cleanup.Queue[pendingRelease]

	lastSequence atomic.Uint64
	unconfirmed  unconfirmedCalls

	// gate counts what talks to Redis outside of the queues, so that Close can wait for it.
	gate gate.Gate

	// Each queue runs at most one attempt per semaphore at a time. Sequence numbers rely on that.
	counting         *waitqueue.Group[string, acquisition]
	countingReleases *waitqueue.Group[string, *countingRelease]
	plain            *waitqueue.Group[string, *acquireRequest]
	plainReleases    *waitqueue.Group[string, *releaseRequest]
	fair             *waitqueue.Group[string, *acquireRequest]
	fairReleases     *waitqueue.Group[string, *releaseRequest]

	mu   sync.Mutex
	held map[*Grant]struct{} // guarded by mu
}

// New returns a Client that uses rdb: a *redis.Client for one server or Sentinel, a *redis.ClusterClient, a
// *redis.Ring, or a type that embeds one of these. New does not connect to Redis and starts no goroutine. Its
// errors match cogwheel.ErrInvalid.
//
// Calls use rdb with its pool, hooks, timeouts and retries. Concurrent calls on different semaphores share
// pipelines. A call returns when its context ends; a command that is still in flight then ends after the
// ReadTimeout of rdb. New refuses a client without a ReadTimeout.
//
// Renewals use a few additional connections with the options of rdb, so a busy pool does not delay them;
// hooks of rdb do not see them. For a client of any other type New logs a warning, and its renewals use the
// connections of rdb.
//
// The caller must keep rdb open until Close has returned.
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
		return nil, argument.Error("client", "without a ReadTimeout", "calls would not end while Redis hangs")
	}
	if base == nil {
		base = rdb
		cfg.logger.Warn("semaphore: the client is of a type whose nodes are not known: "+
			"renewals share its connections, and sharded channels do not wake waiters", "type", fmt.Sprintf("%T", rdb))
	}
	workers := gate.NewWorkers(cfg.wheel)
	c := &Client{
		rdb: rdb, base: base,
		wheel: cfg.wheel, logger: cfg.logger, poll: cfg.poll, idleMillis: redisconn.Millis(cfg.idle),
		monitor:  monitor{hooks: cfg.hooks, origin: time.Now()},
		owner:    hex.EncodeToString(newID()),
		channels: waitqueue.NewChannels(base, cfg.wheel, cfg.channels),
		sender: sender.New(sender.Config{
			Client: rdb, Base: base, Retries: redisconn.Retries(base), Wheel: cfg.wheel, Workers: workers,
		}),
		held: make(map[*Grant]struct{}),
	}
	c.gate.Workers = workers
	c.cleanup = c.newCleanup()
	c.renewer, err = renewal.New(cfg.wheel, renewal.WithLogger(cfg.logger), renewal.WithHooks(c.monitor.renewalHooks()))
	if err != nil {
		return nil, err
	}
	c.dedicated = redisconn.NewDedicated(base, cfg.wheel, renewalConns)
	if c.leases, err = c.renewer.Destination(&renewBackend{client: c}); err != nil {
		return nil, err
	}
	if c.fairs, err = c.renewer.Destination(&renewBackend{client: c, fair: true}); err != nil {
		return nil, err
	}
	c.makeQueues()
	return c, nil
}

func (c *Client) makeQueues() {
	listen := waitqueue.Listen(c.channels, scripts.SemChannel)
	c.counting = waitqueue.New(c.wheel, waitqueue.Config[string, acquisition]{
		Attempt: c.attemptCounting, Begin: c.beginCounting,
		MaxBatch: maxBatch, Poll: c.poll, Listen: listen, Workers: c.gate.Workers,
		GiveBack: c.giveBackCounting,
	})
	c.countingReleases = waitqueue.New(c.wheel, waitqueue.Config[string, *countingRelease]{
		Attempt: c.attemptCountingReleases, Begin: c.beginCountingReleases,
		MaxBatch: maxBatch, Poll: c.poll, Workers: c.gate.Workers,
	})
	c.plain = waitqueue.New(c.wheel, waitqueue.Config[string, *acquireRequest]{
		Attempt: c.attemptPlain, Begin: c.beginPlain,
		MaxBatch: maxBatch, Poll: c.poll, Listen: listen, Workers: c.gate.Workers,
		GiveBack: c.giveBackPlain, Leave: c.leavePlain,
	})
	c.plainReleases = waitqueue.New(c.wheel, waitqueue.Config[string, *releaseRequest]{
		Attempt: c.attemptPlainReleases, Begin: c.beginPlainReleases,
		MaxBatch: maxBatch, Poll: c.poll, Workers: c.gate.Workers,
	})
	c.fair = waitqueue.New(c.wheel, waitqueue.Config[string, *acquireRequest]{
		Attempt: c.attemptFair, Begin: c.beginFair,
		MaxBatch: maxFairBatch, Poll: c.poll, Eager: true, Workers: c.gate.Workers,
		Listen: waitqueue.Listen(c.channels, c.fairChannel), GiveBack: c.giveBackFair, Leave: c.giveBackFair,
	})
	c.fairReleases = waitqueue.New(c.wheel, waitqueue.Config[string, *releaseRequest]{
		Attempt: c.attemptFairReleases, Begin: c.beginFairReleases,
		MaxBatch: maxBatch, Poll: c.poll, Workers: c.gate.Workers,
	})
}

// destination returns what renews leased permits.
func (c *Client) destination(fair bool) *renewal.Destination {
	if fair {
		return c.fairs
	}
	return c.leases
}

// releaseQueue returns the queue of releases of leased permits.
func (c *Client) releaseQueue(fair bool) *waitqueue.Group[string, *releaseRequest] {
	if fair {
		return c.fairReleases
	}
	return c.plainReleases
}

// Close releases all held grants, ends waiting calls with ErrClosed, and blocks until the Client has stopped
// working or ctx ends. Other processes may acquire the released permits at once, so call Close when the work
// that holds them has ended. Close does not release the permits of a CountingSemaphore; release them before.
// It stops neither the wheel nor rdb.
//
// Close returns an error if ctx ends first or Redis did not confirm a release. If ctx ends first, Close
// closes the connections anyway: calls in flight end by their timeouts, and grants that are not released yet
// end with their lease. If ctx has already ended when Close is called, Close takes up to a second, so that a
// deferred Close releases the grants whatever its context. Further calls of Close only wait.
func (c *Client) Close(ctx context.Context) error {
	if ctx == nil {
		return argument.Nil("context")
	}
	ctx, cancel := contexts.ToClose(ctx, c.wheel)
	defer cancel()
	if !c.gate.Close() {
		return c.gate.Wait(ctx)
	}
	err := joined.Errors(
		c.counting.Close(ctx, ErrClosed), // permits granted meanwhile go to countingReleases
		c.plain.Close(ctx, ErrClosed),
		c.fair.Close(ctx, ErrClosed),
		c.gate.Wait(ctx),
		c.releaseGrants(ctx),
		c.closeCleanup(ctx),
		c.settleAll(ctx),
		c.countingReleases.Close(ctx, ErrClosed),
		c.plainReleases.Close(ctx, ErrClosed),
		c.fairReleases.Close(ctx, ErrClosed),
		c.renewer.Close(ctx),
		c.channels.Close(ctx),
		c.dedicated.Close(ctx),
	)
	c.gate.Workers.Close()
	if err != nil {
		return fmt.Errorf("semaphore: close: %w", err)
	}
	return nil
}

// releaseGrants releases all held grants.
func (c *Client) releaseGrants(ctx context.Context) error {
	c.mu.Lock()
	held := make([]*Grant, 0, len(c.held))
	for g := range c.held {
		held = append(held, g)
	}
	c.mu.Unlock()
	var releases sync.WaitGroup
	for _, g := range held {
		if !g.lease.Close(ErrClosed) {
			if err := g.Err(); errors.Is(err, ErrLost) { // since the gate was closed
				c.monitor.ended(g, err)
				c.removeGrant(g)
			}
		} else {
			c.monitor.ended(g, ErrClosed)
			c.removeGrant(g)
			releases.Add(1)
			request := &releaseRequest{ids: g.ids}
			c.releaseQueue(g.fair).WaitFunc(ctx, g.name, request, func(_ *releaseRequest, err error) {
				defer releases.Done()
				if err != nil {
					g.releaseLater(0)
				}
			})
		}
	}
	releases.Wait()
	return ctx.Err()
}

func (c *Client) addGrant(g *Grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[g] = struct{}{}
}

func (c *Client) removeGrant(g *Grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, g)
}

// recordKey returns a new key in which Redis keeps the result of one edit.
func (c *Client) recordKey(name string) string {
	return scripts.SuffixName(name, "call:"+strconv.FormatUint(c.lastSequence.Add(1), 10)+":"+c.owner)
}

// newID returns 16 random bytes.
func newID() []byte {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return b
}
