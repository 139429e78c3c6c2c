package semaphore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/cleanup"
	"github.com/cogwheel-go/cogwheel/internal/joined"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	maxBatch = 100  // requests in one script
	maxFair  = 1000 // requests of one process that a fair semaphore knows of
	poolSize = 4    // for renewals, as many as are in flight at a time

	// laneMillis is how long Redis remembers the last call of a process: well beyond lateFor.
	laneMillis   = 600_000
	recordMillis = 60_000
	fenceMillis  = 86_400_000
)

// Client takes permits on one Redis. Make one per process and Redis with New; it is safe for concurrent use.
//
// Ground rules. Everything is set by New and never changes, except held, which mu guards, and what has locks of its own. Whatever may talk
// to Redis is counted by gate or belongs to a queue, so that Close knows when the last of it has ended. At most one
// acquiring and one releasing script per semaphore is under way at a time: the lanes rely on it.
type Client struct {
	rdb       redis.UniversalClient // for calls that somebody waits for
	base      redis.UniversalClient // what rdb is or embeds
	retries   int                   // of such a call
	dedicated *calls.Dedicated      // for renewals

	wheel    *wheel.Wheel
	logger   *slog.Logger
	poll     time.Duration
	owner    string // 32 hex digits
	nth      atomic.Uint64
	channels *waitqueue.Channels
	renewer  *renewal.Renewer
	leases   *renewal.Destination
	gate     calls.Gate
	cleanup  *cleanup.Queue[pendingRelease]
	debts    debts

	plain     *waitqueue.Group[string, int64]
	additions *waitqueue.Group[string, *addition]
	leased    *waitqueue.Group[string, *request]
	fair      *waitqueue.Group[string, *request]
	returns   *waitqueue.Group[string, *releaseRequest]
	fairBacks *waitqueue.Group[string, *releaseRequest]

	mu   sync.Mutex
	held map[*Grant]struct{}
}

// New returns a Client that takes its permits through rdb, a *redis.Client for one server or Sentinel, a *redis.ClusterClient,
// a *redis.Ring or a type that embeds one of them. It does not talk to Redis yet and starts no goroutine. Errors match ErrInvalid.
//
// Calls go through rdb, its pool, hooks, timeouts and retries. A caller whose context ends is let go at once, and the call that it
// left ends by the client's ReadTimeout: a client without one is refused. Renewals use a few connections of their own, made from the
// same options, so that a pool busy with other work does not delay them; hooks of rdb do not see them. A client of another type is used
// as well; since nothing is known of its nodes, it has none of this, and New logs a warning.
// The caller keeps rdb open until Close has returned.
func New(rdb redis.UniversalClient, opts ...Option) (*Client, error) {
	if err := argument.Client(rdb); err != nil {
		return nil, err
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	base := calls.Base(rdb)
	if calls.Endless(base) {
		return nil, argument.Error("client", "without a ReadTimeout", "calls to a Redis that hangs would never end")
	}
	if base == nil {
		base = rdb
		cfg.logger.Warn("semaphore: the client is of a type whose nodes are not known: renewals share its connections, "+
			"and waiters are not woken on sharded channels", "type", fmt.Sprintf("%T", rdb))
	}
	c := &Client{
		rdb: rdb, base: base, retries: calls.Retries(base),
		wheel: cfg.wheel, logger: cfg.logger, poll: cfg.poll,
		owner:    hex.EncodeToString(newID()),
		channels: waitqueue.NewChannels(base, cfg.wheel, cfg.channels),
		held:     make(map[*Grant]struct{}),
	}
	c.cleanup = c.newCleanup()
	if c.renewer, err = renewal.New(cfg.wheel, renewal.WithLogger(cfg.logger), renewal.WithBatchSize(1000)); err != nil {
		return nil, err
	}
	c.dedicated = calls.NewDedicated(base, cfg.wheel, poolSize)
	if c.leases, err = c.renewer.Destination(&renewBackend{dedicated: c.dedicated}); err != nil {
		return nil, err
	}
	c.makeQueues()
	return c, nil
}

func (c *Client) makeQueues() {
	listen := waitqueue.Listen(c.channels, scripts.SemChannel)
	c.plain = waitqueue.New(c.wheel, waitqueue.Config[string, int64]{
		Attempt: c.attemptPlain, MaxBatch: maxBatch, Poll: c.poll, Listen: listen, GiveBack: c.giveBackPlain,
	})
	c.additions = waitqueue.New(c.wheel, waitqueue.Config[string, *addition]{
		Attempt: c.attemptAdditions, MaxBatch: maxBatch, Poll: c.poll,
	})
	c.leased = waitqueue.New(c.wheel, waitqueue.Config[string, *request]{
		Attempt: c.attemptLeased, MaxBatch: maxBatch, Poll: c.poll, Listen: listen,
		GiveBack: c.giveBackLeased, Leave: c.leaveLeased,
	})
	c.returns = waitqueue.New(c.wheel, waitqueue.Config[string, *releaseRequest]{
		Attempt: c.attemptReturns, MaxBatch: maxBatch, Poll: c.poll,
	})
	c.fair = waitqueue.New(c.wheel, waitqueue.Config[string, *request]{
		Attempt: c.attemptFair, MaxBatch: maxFair, Poll: c.poll, Eager: true, Listen: waitqueue.Listen(c.channels, c.fairChannel),
		GiveBack: c.giveBackFair, Leave: c.giveBackFair,
	})
	c.fairBacks = waitqueue.New(c.wheel, waitqueue.Config[string, *releaseRequest]{
		Attempt: c.attemptFairReturns, MaxBatch: maxBatch, Poll: c.poll,
	})
}

// Close releases the grants that are held, ends waiting calls with ErrClosed and returns when nothing of the Client is left
// running, or when ctx ends: then the connections are closed all the same, calls in flight end by their own timeouts, and
// grants that could not be released end with their lease. Permits of a Semaphore that were acquired and not released are the
// caller's to release before. Closing twice is harmless. The wheel and rdb stay the caller's.
func (c *Client) Close(ctx context.Context) error {
	if !c.gate.Close() {
		return c.gate.Wait(ctx)
	}
	err := joined.Errors(
		c.plain.Close(ctx, ErrClosed), // what they were granted is on its way back
		c.leased.Close(ctx, ErrClosed),
		c.fair.Close(ctx, ErrClosed),
		c.gate.Wait(ctx),
		c.releaseAll(ctx),
		c.closeCleanup(ctx),
		c.settleAll(ctx),
		c.additions.Close(ctx, ErrClosed),
		c.returns.Close(ctx, ErrClosed),
		c.fairBacks.Close(ctx, ErrClosed),
		c.renewer.Close(ctx),
		c.channels.Close(ctx),
		c.dedicated.Close(ctx),
	)
	if err != nil {
		return fmt.Errorf("semaphore: close: %w", err)
	}
	return nil
}

// releaseAll gives back every grant that is held.
func (c *Client) releaseAll(ctx context.Context) error {
	c.mu.Lock()
	held := make([]*Grant, 0, len(c.held))
	for g := range c.held {
		held = append(held, g)
	}
	c.mu.Unlock()
	var calls sync.WaitGroup
	for _, g := range held {
		if g.lease.Close(ErrClosed) {
			c.drop(g)
			calls.Add(1)
			c.queueOf(g.fair).WaitFunc(ctx, g.name, &releaseRequest{ids: g.ids}, func(_ *releaseRequest, err error) {
				defer calls.Done()
				if err != nil {
					g.releaseLater(0)
				}
			})
		}
	}
	calls.Wait()
	return ctx.Err()
}

func (c *Client) queueOf(fair bool) *waitqueue.Group[string, *releaseRequest] {
	if fair {
		return c.fairBacks
	}
	return c.returns
}

func (c *Client) keep(g *Grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[g] = struct{}{}
}

func (c *Client) drop(g *Grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, g)
}

// lane is the key in which Redis remembers the last call of this process on a semaphore.
func (c *Client) lane(name, kind string) string {
	return scripts.SuffixName(name, kind+":"+c.owner)
}

// record is a key in which Redis remembers what one call returned.
func (c *Client) record(name string) string {
	return c.lane(name, "call:"+strconv.FormatUint(c.nth.Add(1), 10))
}

// newID returns 16 random bytes.
func newID() []byte {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return b
}
