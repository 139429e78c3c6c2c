package ratelimit

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/client"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/usercode"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/keys"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/outage"
)

// Client limits rates through one Redis deployment. Create one Client per process and deployment with New, and another
// one for limiters that need another policy or timeout: an Option holds for all limiters of a Client. It is safe for
// concurrent use. The methods of its limiters return a *cogwheel.InvalidError for a nil context and for a negative n.
type Client struct {
	rdb     redis.UniversalClient
	base    redis.UniversalClient // the client of a known type that rdb is or embeds; knows the nodes
	logger  *slog.Logger
	gate    gate.Gate // counts the operations that may talk to Redis
	core    *keys.Keys
	monitor monitor
}

// New returns a Client that uses rdb: a *redis.Client for one server or Sentinel, a *redis.ClusterClient, a
// *redis.Ring, or a type that embeds one of these. New does not connect to Redis and starts no goroutine. Its
// errors match cogwheel.ErrInvalid. New refuses a client without a ReadTimeout, because its calls to a Redis
// that hangs would never end. The caller must keep rdb open until Close has returned.
//
// A decision takes at most the time of WithTimeout, by default 250 ms; then the policy decides. A call returns
// earlier if its context ends, whatever Redis does.
//
// New does not change rdb, and all hooks of rdb see the scripts, except those that ask whether a node is well after a
// connection has failed. While Redis hangs, up to 18 pipelines per node are in flight, however many calls there
// are. Each lasts for the ReadTimeout of rdb, or, if ContextTimeoutEnabled is set in rdb, for four times the time
// of WithTimeout at most. Close waits for them.
// For a client of any other type New logs a warning: its nodes are not known, so scripts for different keys
// share no pipelines, and up to 48 scripts are in flight.
func New(rdb redis.UniversalClient, opts ...Option) (*Client, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	c := &Client{logger: cfg.Logger, monitor: newMonitor(cfg.hooks)}
	r, err := client.NewRedis(&cfg.Options, rdb, &c.gate)
	if err != nil {
		return nil, err
	}
	if !r.Known {
		c.logger.Warn("ratelimit: the client is of a type whose nodes are not known: "+
			"the scripts of each key travel alone", "type", fmt.Sprintf("%T", rdb))
	}
	c.rdb, c.base = r.Client, r.Base
	patience := cfg.timeout
	if most, _ := redisconn.ReadTimeout(c.base); most > 0 {
		patience = min(patience, most)
	}
	breakers := outage.New(outage.Config{
		Base: c.base, Sender: r.Sender, Wheel: cfg.Wheel, Timeout: cfg.timeout, Patience: patience,
		Threshold: cfg.failures, Probe: cfg.probe, Policy: cfg.policy.policy,
		Failed: func() { c.monitor.failures.Add(1) }, Down: c.nodeDown, Up: c.nodeUp,
	})
	r.Sender.Timeout = 4 * min(cfg.timeout, math.MaxInt64/4) // a late reply may have permits for waiters
	r.Sender.CheckTimeout, r.Sender.Checked = cfg.timeout, breakers.Checked
	c.core = keys.New(keys.Config{
		ID: client.NewID(), Wheel: cfg.Wheel, Clock: client.NewClock(cfg.Wheel),
		Timeout: cfg.timeout, Patience: patience, Sender: r.Sender, Breakers: breakers, Gate: &c.gate,
	})
	return c, nil
}

// now returns the time by the clock of the Client.
func (c *Client) now() time.Duration { return c.core.Now() }

// refusal returns the error of a call that does not begin, or nil.
func (c *Client) refusal(ctx context.Context) error {
	switch {
	case ctx.Err() != nil:
		return conventions.Cause(ctx)
	case c.gate.Closed():
		return ErrClosed
	}
	return nil
}

// Close ends waiting calls with ErrClosed and blocks until no call of the Client is in flight, or until ctx
// ends. If ctx ends first, Close returns its error. Waits have ended then too, and calls in flight end by the
// ReadTimeout of rdb, or, if they wait for a connection, by DialerRetries times its DialTimeout. Every later
// call returns ErrClosed, except Delay and Wait of a Reservation, which still work. Further calls of Close wait
// in the same way. Close stops neither the wheel nor rdb.
func (c *Client) Close(ctx context.Context) error {
	if ctx == nil {
		return argument.Nil("context")
	}
	if c.gate.Close() {
		c.core.Breakers.Stop()
	}
	c.core.EndWaits()
	if err := c.gate.Wait(ctx); err != nil {
		return fmt.Errorf("ratelimit: close: %w", err)
	}
	c.gate.Workers.Close()
	c.core.Forget()
	return nil
}

// inside runs f, which talks to Redis for one caller with the state of a key, unless the Client is closed. It
// returns when f has returned or ctx ends, whatever Redis does. If ctx ends before the turn of f, f is never
// called. If ctx ends later, f continues until the timeouts of rdb. inside releases the state.
func inside[T any](
	ctx context.Context, s *keys.State, operation string, f func(context.Context) (T, error),
) (value T, err error) {
	c := s.Keys
	defer s.Release()
	if err = ctx.Err(); err != nil {
		err = conventions.Cause(ctx)
	} else {
		err = c.Enter()
	}
	if err != nil {
		return value, s.OperationError(operation, err)
	}
	defer c.Leave()
	type result struct {
		value T
		err   error
	}
	answer := make(chan result, 1)
	r, answered := c.Sender.Do(ctx, calls.Request{
		Key: s.Route(),
		Send: func(ctx context.Context) *redis.Cmd {
			s.Hold()
			defer s.Release()
			value, err := f(ctx)
			answer <- result{value, err}
			return redis.NewCmd(ctx)
		},
	})
	switch {
	case !answered:
		return value, s.OperationError(operation, conventions.Cause(ctx))
	case r.Err() != nil: // f panicked
		return value, s.OperationError(operation, r.Err())
	}
	got := <-answer
	return got.value, s.OperationError(operation, got.err)
}

// refuse calls f with an error, on another goroutine than the caller's.
func (c *Client) refuse(f func(error), err error) func() {
	tell := func() { c.callback(f, err) }
	if _, stopped := wheelentry.AfterFunc(c.core.Wheel, 0, func(error) { tell() }); stopped != nil {
		go tell()
	}
	return func() {}
}

// callback calls the function of a WaitFunc, on a goroutine with nothing else to do.
func (c *Client) callback(f func(error), err error) { usercode.Here(func() { f(err) }, c.panicked) }

// apart calls f, which may call hooks, apart if there are any. A failure of one is logged.
func (c *Client) apart(f func()) {
	if c.monitor.reports {
		usercode.Apart(f, c.panicked)
	} else {
		f()
	}
}

func (c *Client) nodeDown(node string, cause error) {
	err := keys.Unavailable(cause)
	c.logger.Warn("ratelimit: Redis is down, the policy decides", "node", node, "error", err)
	c.tellOutage(c.monitor.hooks.Down, Event{Err: err, Node: node})
}

func (c *Client) nodeUp(node string, took time.Duration, well bool) {
	c.tellOutage(c.monitor.hooks.Up, Event{Took: took, Node: node})
	if well {
		c.logger.Info("ratelimit: Redis is back", "node", node)
	}
}

// tellOutage calls a hook, unless it is nil.
func (c *Client) tellOutage(hook func(Event), e Event) {
	if hook != nil {
		e.Context = context.Background()
		usercode.Apart(func() { hook(e) }, c.panicked)
	}
}

func (c *Client) panicked(f *usercode.Failure) {
	c.logger.Error("ratelimit: callback panicked", "panic", f.Value, "stack", f.Stack)
}
