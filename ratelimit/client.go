package ratelimit

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/ratelimit/internal/outage"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/client"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/usercode"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Client limits rates through one Redis deployment. Create one Client per process and deployment with New. It
// is safe for concurrent use. The methods of its limiters return a *cogwheel.InvalidError for a nil context and
// for a negative n.
type Client struct {
	rdb      redis.UniversalClient
	base     redis.UniversalClient // the client of a known type that rdb is or embeds; knows the nodes
	wheel    *wheel.Wheel
	logger   *slog.Logger
	id       string // part of the keys of limits with the scope PerClient
	clock    client.Clock
	timeout  time.Duration
	patience time.Duration // the time for an answer of Redis: timeout, or a shorter ReadTimeout
	sender   *calls.Sender
	breakers *outage.Breakers
	states   states
	monitor  monitor
	gate     gate.Gate // counts the operations that may talk to Redis
	calls    sync.Pool // of *call; one per Client, because a channel belongs to the synctest bubble that made it
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
	c := &Client{
		wheel:   cfg.Wheel,
		logger:  cfg.Logger,
		id:      client.NewID(),
		clock:   client.NewClock(cfg.Wheel),
		timeout: cfg.timeout,
		monitor: newMonitor(cfg.hooks),
	}
	r, err := client.NewRedis(&cfg.Options, rdb, &c.gate)
	if err != nil {
		return nil, err
	}
	if !r.Known {
		c.logger.Warn("ratelimit: the client is of a type whose nodes are not known: "+
			"the scripts of each key travel alone", "type", fmt.Sprintf("%T", rdb))
	}
	c.rdb, c.base, c.sender = r.Client, r.Base, r.Sender
	c.sender.Timeout = 4 * min(cfg.timeout, math.MaxInt64/4) // a late reply may have permits for waiters
	c.calls.New = newCall
	c.states.seed = maphash.MakeSeed()
	c.patience = cfg.timeout
	if most, _ := redisconn.ReadTimeout(c.base); most > 0 {
		c.patience = min(c.patience, most)
	}
	c.breakers = outage.New(outage.Config{
		Base: c.base, Sender: c.sender, Wheel: c.wheel, Timeout: c.timeout, Patience: c.patience,
		Threshold: cfg.failures, Probe: cfg.probe, Policy: cfg.policy.policy,
		Failed: func() { c.monitor.failures.Add(1) }, Down: c.nodeDown, Up: c.nodeUp,
	})
	c.sender.CheckTimeout, c.sender.Checked = cfg.timeout, c.breakers.Checked
	return c, nil
}

// now returns the time by the clock of the Client.
func (c *Client) now() time.Duration { return c.clock.Now() }

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
		c.breakers.Stop()
	}
	for i := range c.states.shards {
		c.states.shards[i].close()
	}
	if err := c.gate.Wait(ctx); err != nil {
		return fmt.Errorf("ratelimit: close: %w", err)
	}
	c.gate.Workers.Close()
	for i := range c.states.shards {
		c.states.shards[i].forgetAll()
	}
	return nil
}

// forgetAll forgets the last known states of all keys.
func (s *stateShard) forgetAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.states)
}

// close ends the waits and removes the wheel entries of the states. The gate is closed, so the states add no
// more.
func (s *stateShard) close() {
	s.mu.Lock()
	var states, unused []*keyState
	for _, state := range s.states {
		states = append(states, state)
		if state.retention.Stop() {
			unused = append(unused, state)
		}
	}
	s.mu.Unlock()
	for _, state := range states {
		state.mu.Lock()
		var j *job
		if state.line != nil {
			state.line.finishAll(state.client.now(), ErrClosed)
			j = state.leavePlacesLocked()
		}
		if state.armed && state.timer.Stop() {
			state.armed = false
			unused = append(unused, state)
		}
		state.mu.Unlock()
		state.send(j)
	}
	for _, state := range unused {
		state.release()
	}
}

// enter counts an operation that may talk to Redis, until leave.
func (c *Client) enter() error {
	if !c.gate.Enter() {
		return ErrClosed
	}
	return nil
}

func (c *Client) leave() { c.gate.Leave() }

// inside runs f, which talks to Redis for one caller with the state of a key, unless the Client is closed. It
// returns when f has returned or ctx ends, whatever Redis does. If ctx ends before the turn of f, f is never
// called. If ctx ends later, f continues until the timeouts of rdb. inside releases the state.
func inside[T any](
	ctx context.Context, s *keyState, operation string, f func(context.Context) (T, error),
) (value T, err error) {
	c := s.client
	defer s.release()
	if err = ctx.Err(); err != nil {
		err = conventions.Cause(ctx)
	} else {
		err = c.enter()
	}
	if err != nil {
		return value, s.operationError(operation, err)
	}
	defer c.leave()
	type result struct {
		value T
		err   error
	}
	answer := make(chan result, 1)
	r, answered := c.sender.Do(ctx, calls.Request{
		Key: s.Route(),
		Send: func(ctx context.Context) *redis.Cmd {
			s.hold()
			defer s.release()
			value, err := f(ctx)
			answer <- result{value, err}
			return redis.NewCmd(ctx)
		},
	})
	switch {
	case !answered:
		return value, s.operationError(operation, conventions.Cause(ctx))
	case r.Err() != nil: // f panicked
		return value, s.operationError(operation, r.Err())
	}
	got := <-answer
	return got.value, s.operationError(operation, got.err)
}

// refuse calls f with an error, on another goroutine than the caller's.
func (c *Client) refuse(f func(error), err error) func() {
	tell := func() { c.callback(f, err) }
	if _, stopped := wheelentry.AfterFunc(c.wheel, 0, func(error) { tell() }); stopped != nil {
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
	err := unavailable(cause)
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
