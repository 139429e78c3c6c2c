package semaphore

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
	"github.com/cogwheel-go/cogwheel/internal/client"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/hold"
	"github.com/cogwheel-go/cogwheel/internal/line"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/signals"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	maxBatch     = 100 // requests in one script
	renewalConns = 4   // connections for renewals; each carries one pipeline at a time

	recordMillis = 60_000     // how long Redis keeps the result of an edit
	fenceMillis  = 86_400_000 // how long Redis keeps the last token; of a Semaphore an hour less at times
)

// Client acquires permits of semaphores in one Redis deployment. Create one Client per process and deployment
// with New. It is safe for concurrent use.
type Client struct {
	// Set by New. Each is safe for concurrent use or never changes.
	redis      *client.Leases
	wheel      *wheel.Wheel
	logger     *slog.Logger
	monitor    monitor
	poll       time.Duration
	idleMillis int64  // the idle expiry, ms; 0 without
	owner      string // identifies this process to Redis
	cleanup    *cleanup.Queue[pendingRelease]

	lastSequence atomic.Uint64
	lastWaiter   atomic.Uint64
	unconfirmed  unconfirmedCalls

	// gate counts the operations outside of the queues that talk to Redis, so that Close can wait for them.
	gate   gate.Gate
	closed chan struct{} // closed when the first Close returns

	holding   hold.Client
	heldUntil hold.Longest // the latest end of the leases and places that calls have asked for, by the clock

	// Each queue runs at most one attempt per semaphore at a time. Sequence numbers rely on that.
	counting         *waitqueue.Group[string, acquisition]
	countingReleases *waitqueue.Group[string, *countingRelease]
	countingLines    *line.Lines[string]
	plain, fair      leased

	mu     sync.Mutex
	held   map[*held]struct{}  // guarded by mu
	warned map[string]struct{} // guarded by mu; the names of warnings of another number of permits
}

// New returns a Client that uses rdb: a *redis.Client for one server or Sentinel, a *redis.ClusterClient, a
// *redis.Ring, or a type that embeds one of these. New does not connect to Redis and starts no goroutine. Its
// errors match cogwheel.ErrInvalid.
//
// Calls use rdb with its pool, hooks, timeouts and retries. Concurrent calls on different semaphores share
// pipelines. A call returns when its context ends; a command that is still in flight then ends after the
// ReadTimeout of rdb. New refuses a client without a ReadTimeout.
//
// Renewals and releases in the background use a few additional connections with the options of rdb, so a busy
// pool does not delay them. While permits are held, these are replaced each second with Sentinels, otherwise
// each third of the lease; hooks of rdb do not see them. For a client of any other type New logs a warning, and
// renewals and these releases use the connections of rdb.
//
// The caller must keep rdb open until Close has returned.
func New(rdb redis.UniversalClient, opts ...Option) (*Client, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	c := &Client{
		wheel: cfg.Wheel, logger: cfg.Logger, poll: cfg.Poll, idleMillis: redisconn.Millis(cfg.idle),
		monitor: monitor{
			hooks: cfg.hooks, logger: cfg.Logger, failures: signals.Failures{Closed: ErrClosed},
			clock: client.NewClock(cfg.Wheel),
		},
		owner:  client.NewID(),
		closed: make(chan struct{}),
		held:   make(map[*held]struct{}),
		warned: make(map[string]struct{}),
	}
	c.holding = hold.Client{
		Wheel: c.wheel, Gate: &c.gate, Lost: ErrLost, NotHeld: ErrNotHeld, Closed: ErrClosed,
	}
	c.redis, err = client.NewLeases(&cfg.Options, rdb, &c.gate, renewalConns, c.monitor.renewalHooks())
	if err != nil {
		return nil, err
	}
	if !c.redis.Known {
		c.logger.Warn("semaphore: the client is of a type whose nodes are not known: "+
			"renewals share its connections, and sharded channels do not wake waiters", "type", fmt.Sprintf("%T", rdb))
	}
	c.cleanup = c.newCleanup()
	c.makeQueues()
	for _, l := range []*leased{&c.plain, &c.fair} {
		if l.renewals, err = c.redis.Renewer.Destination(&renewBackend{client: c, fair: l.fair}); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *Client) makeQueues() {
	c.countingLines = c.newLines(false)
	c.counting = waitqueue.New(c.wheel, waitqueue.Config[string, acquisition]{
		Submit: c.redis.Sender.Submit, Build: c.buildCounting,
		MaxBatch: maxBatch, Poll: c.poll, Workers: c.gate.Workers,
		Listen: c.countingLines.Listen, Listens: c.countingLines.Listens,
		GiveBack: c.giveBackCounting,
		Behind:   func(name string) bool { return c.countingReleases.Unbuilt(name) && c.countingLines.Next(name) },
	})
	c.countingReleases = waitqueue.New(c.wheel, waitqueue.Config[string, *countingRelease]{
		Submit: c.redis.Sender.Submit, Build: c.buildCountingReleases, Gather: c.countingLines.Gather,
		MaxBatch: maxBatch, Poll: c.poll, Workers: c.gate.Workers,
	})
	c.plain, c.fair = c.newLeased(false), c.newLeased(true)
}

// Close releases all held grants, ends waiting calls with ErrClosed, and blocks until the Client has stopped working or
// ctx ends; while Redis does not answer, until a second after the last lease has ended, and for at least eleven seconds
// if calls on a CountingSemaphore are not confirmed. Give it a ctx with a timeout. Other processes may acquire the
// released permits at once, so call Close when the work that holds them has ended. Close does not release the permits
// of a CountingSemaphore; release them before. It stops neither the wheel nor rdb.
//
// If ctx ends first, the error matches ctx.Err(), calls in flight end by their timeouts, and grants that are not
// released yet end with their lease. If ctx has already ended when Close is called, Close takes up to a second, so that
// a deferred Close releases the grants whatever its context. At the end of that second or of the bound above, the error
// matches context.DeadlineExceeded. If releases fail, it wraps the last error of Redis; if calls on a CountingSemaphore
// stay unconfirmed, it matches ErrUnconfirmed. A release that Redis refuses for good is only logged. Further calls wait
// for the first, and return nil or the error of their ctx.
func (c *Client) Close(ctx context.Context) error {
	if ctx == nil {
		return argument.Nil("context")
	}
	if !c.gate.Close() {
		return c.awaitClosed(ctx)
	}
	defer close(c.closed)
	ctx, cancel := hold.ToClose(ctx, c.wheel, c.patience())
	defer cancel()
	c.counting.Refuse(ErrClosed)
	c.plain.acquisitions.Refuse(ErrClosed)
	c.fair.acquisitions.Refuse(ErrClosed)
	released := c.releaseGrants(ctx)
	return c.redis.Close(
		ctx,
		c.counting.Close(ctx, ErrClosed), // permits granted meanwhile go to countingReleases
		c.plain.acquisitions.Close(ctx, ErrClosed),
		c.fair.acquisitions.Close(ctx, ErrClosed),
		c.gate.Wait(ctx),
		released(),
		c.releaseGrants(ctx)(), // grants of calls that were in flight
		c.closeCleanup(ctx),
		c.settleAll(ctx),
		c.countingReleases.Close(ctx, ErrClosed),
		c.plain.releases.Close(ctx, ErrClosed),
		c.fair.releases.Close(ctx, ErrClosed),
	)
}

// awaitClosed blocks until the first Close returns.
func (c *Client) awaitClosed(ctx context.Context) error {
	select {
	case <-c.closed:
		return nil
	default:
	}
	select {
	case <-c.closed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// countingPatience is the least time that Close waits for calls on a CountingSemaphore, whose permits have no
// lease. hold.ToClose adds a second.
const countingPatience = 10 * time.Second

// patience returns how long a release can matter.
func (c *Client) patience() time.Duration {
	d := max(c.heldUntil.Load()-c.monitor.clock.Now(), time.Second)
	now := c.wheel.Now()
	for _, h := range c.allHeld() {
		d = max(d, h.Deadline().Sub(now))
	}
	if c.counting.Len()+c.countingReleases.Len()+len(c.unconfirmed.names()) > 0 {
		d = max(d, countingPatience)
	}
	return d
}

// mayBeHeldFor notes that a call asks for permits with a lease.
func (c *Client) mayBeHeldFor(lease time.Duration) {
	c.heldUntil.Raise(c.monitor.clock.Now() + lease)
}

func (c *Client) allHeld() []*held {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.held))
}

// releaseGrants begins to release all held grants. wait blocks until they are released or ctx has ended.
func (c *Client) releaseGrants(ctx context.Context) (wait func() error) {
	var releases sync.WaitGroup
	for _, h := range c.allHeld() {
		switch {
		case h.Close(ErrClosed):
			h.Drop()
			releases.Add(1)
			request := &releaseRequest{ids: h.ids}
			c.leased(h.fair).releases.WaitFunc(ctx, h.name, request, func(_ *releaseRequest, err error) {
				defer releases.Done()
				if err != nil {
					h.ReleaseLater(0)
				}
				h.Report(ErrClosed)
			})
		case errors.Is(h.Err(), ErrLost): // since the gate was closed
			h.Drop()
			releases.Go(func() { h.Report(h.Err()) })
		}
	}
	return func() error {
		releases.Wait()
		return ctx.Err()
	}
}

func (c *Client) addHeld(h *held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[h] = struct{}{}
}

func (c *Client) removeHeld(h *held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, h)
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
