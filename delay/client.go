package delay

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/client"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/hold"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/signals"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	maxBatch     = 100 // requests in one script
	renewalConns = 4   // connections for renewals; each carries one pipeline at a time

	longestHandler = 365 * 24 * time.Hour // for which Close waits, unless its context ends

	recordMillis = 600_000    // how long Redis keeps the last call of a process: longer than a call is repeated
	tokenMillis  = 86_400_000 // how long Redis keeps the last token
)

// Client schedules tasks in one Redis deployment, and runs those that are due. Create one Client per process and
// deployment with New. It is safe for concurrent use.
type Client struct {
	redis   *client.Leases
	wheel   *wheel.Wheel
	logger  *slog.Logger
	monitor monitor
	process string // identifies this process to Redis
	poll    time.Duration
	leases  *renewal.Destination

	lastNumber atomic.Uint64
	gate       gate.Gate       // calls of methods but Serve, and calls that Redis has not answered
	servers    gate.Gate       // calls of Serve
	longest    hold.Longest    // lease of a queue that was served
	unrecorded atomic.Bool     // a Serve that Close ended has returned errUnrecorded
	ctx        context.Context //nolint:containedctx // of the servers; ends with Close
	cancel     context.CancelCauseFunc
	closed     chan struct{} // closed when the first Close returns

	// Each group runs at most one attempt per queue at a time. The numbers of calls rely on that.
	edits  *waitqueue.Group[string, *edit]
	claims *waitqueue.Group[string, *server]
	solo   solo

	mu      sync.Mutex
	serving map[string]*server // guarded by mu; by the tag of the queue
}

// New returns a Client that uses rdb: a *redis.Client for one server or Sentinel, a *redis.ClusterClient, a
// *redis.Ring, or a type that embeds one of these. New does not connect to Redis and starts no goroutine. Its errors
// match cogwheel.ErrInvalid. The caller must keep rdb open until Close has returned.
func New(rdb redis.UniversalClient, opts ...Option) (*Client, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	c := &Client{
		wheel: cfg.Wheel, logger: cfg.Logger, process: client.NewID(), poll: cfg.Poll,
		monitor: monitor{hooks: cfg.hooks, logger: cfg.Logger, failures: signals.Failures{Closed: ErrClosed}},
		closed:  make(chan struct{}), serving: make(map[string]*server),
	}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	c.redis, err = client.NewLeases(&cfg.Options, rdb, &c.gate, renewalConns, renewal.Hooks{
		Failed: func(e renewal.Event) { c.monitor.failed(e.Err) },
	})
	if err != nil {
		return nil, err
	}
	if c.leases, err = c.redis.Renewer.Destination(renewBackend{c}); err != nil {
		return nil, err
	}
	c.edits = waitqueue.New(c.wheel, waitqueue.Config[string, *edit]{
		Submit: c.redis.Sender.Submit, Build: c.buildEdits,
		MaxBatch: maxBatch, Poll: cfg.Poll, Workers: c.gate.Workers,
	})
	c.claims = waitqueue.New(c.wheel, waitqueue.Config[string, *server]{
		Submit: c.redis.Sender.Submit, Build: c.buildClaim,
		MaxBatch: 1, Poll: cfg.Poll, Workers: c.gate.Workers,
	})
	return c, nil
}

// Close ends every Serve as the end of its context does, refuses new calls with ErrClosed, and blocks until handlers
// have returned and Redis has recorded that, or ctx ends. A Redis that does not answer delays it by the longest lease
// and a second at most; then Close returns an error. If ctx ends first, tasks that are claimed run again when their
// lease has ended. If ctx has ended before, Close takes a second at most. It stops neither the wheel nor rdb. Further
// calls of Close only wait for the first.
func (c *Client) Close(ctx context.Context) error {
	if ctx == nil {
		return argument.Nil("context")
	}
	if !c.gate.Close() {
		select {
		case <-c.closed:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer close(c.closed)
	c.servers.Close()
	ctx, cancel := hold.ToClose(ctx, c.wheel, longestHandler)
	defer cancel()
	c.cancel(ErrClosed)
	c.edits.Refuse(ErrClosed)
	began := c.wheel.Now()
	err := c.servers.Wait(ctx)
	if c.unrecorded.Load() {
		err = conventions.Join(err, errUnrecorded)
	}
	rest := max(0, c.longest.Load()-c.wheel.Now().Sub(began))
	ctx, giveUp := c.wheel.WithTimeout(ctx, rest+time.Second) // for calls that Redis has not answered
	defer giveUp()
	return c.redis.Close(ctx, err, c.edits.Close(ctx, ErrClosed), c.claims.Close(ctx, ErrClosed), c.gate.Wait(ctx))
}

// keysOf returns the keys of a queue, in the order in which its scripts take them.
func keysOf(name string) (keys []string) {
	for _, suffix := range []string{"due", "tasks", "attempts", "running", "later", "failed"} {
		keys = append(keys, scripts.DelayKey(name, suffix))
	}
	return keys
}

// pausedKey returns the key that a queue has while it is paused.
func pausedKey(name string) string { return scripts.DelayKey(name, "paused") }

// recordKey returns the key in which Redis keeps the last call of this process.
func (c *Client) recordKey(name, kind string) string {
	return scripts.DelayKey(name, kind+":"+c.process)
}
