package ratelimit

import (
	"context"
	"crypto/rand"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/contexts"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Client limits rates through one Redis. Make one per process and Redis with New; it is safe for concurrent
// use. The methods of its limiters return a *cogwheel.InvalidError for a nil context and for a negative n.
type Client struct {
	rdb     redis.UniversalClient
	base    redis.UniversalClient // what rdb is or embeds: knows the nodes
	bounded bool                  // commands of flights do not outlast them
	wheel   *wheel.Wheel
	logger  *slog.Logger
	id      string // in the keys of limits of the scope PerClient
	began   time.Time
	timeout time.Duration
	breaker breaker
	senders senders
	states  states
	monitor monitor
	gate    gate.Gate // counts what may talk to Redis
	calls   sync.Pool // of *call; the Client's own, as a channel belongs to the synctest bubble it was made in
}

// New returns a Client that limits through rdb: a *redis.Client for one server or Sentinel, a
// *redis.ClusterClient, a *redis.Ring or a type that embeds one of them. It does not talk to Redis and
// starts no goroutine. The caller keeps rdb open until Close has returned. Errors match
// cogwheel.ErrInvalid; a client without a ReadTimeout is refused, because its calls to a Redis that hangs
// would never end. A client of another type is used as well; since its nodes are not known, New logs a
// warning, and scripts for different keys share no pipelines.
//
// A decision takes no longer than the timeout, 250 ms unless WithTimeout says otherwise; then the policy
// decides. A call returns earlier when its context ends, with one exception: if the context of Allow,
// AllowN or Peek is cancelled while the caller's goroutine sends the script, the call returns the decision,
// when Redis answers or the timeout is over.
//
// To a *redis.Client New adds a hook, which stays after Close. It ends the Client's own scripts in time,
// whatever the timeouts of rdb are, and passes all other commands on. Hooks that are added later do not see
// these scripts.
func New(rdb redis.UniversalClient, opts ...Option) (*Client, error) {
	if err := argument.Client(rdb); err != nil {
		return nil, err
	}
	cfg := config{logger: slog.Default(), failures: 3, probe: defaultProbe, timeout: defaultTimeout}
	for i, o := range opts {
		if o == nil {
			return nil, argument.Error("option", i, "is nil")
		}
		if err := o.apply(&cfg); err != nil {
			return nil, err
		}
	}
	if cfg.wheel == nil {
		cfg.wheel = wheel.Default()
	}
	base := redisconn.Base(rdb)
	if redisconn.Endless(base) {
		return nil, argument.Error("client", "without a ReadTimeout", "calls to a Redis that hangs would never end")
	}
	if base == nil {
		base = rdb
		cfg.logger.Warn("ratelimit: the client is of a type whose nodes are not known: "+
			"the scripts of each key travel alone",
			"type", fmt.Sprintf("%T", rdb))
	}
	c := &Client{
		rdb:     rdb,
		base:    base,
		wheel:   cfg.wheel,
		logger:  cfg.logger,
		id:      rand.Text(),
		began:   cfg.wheel.Now(),
		timeout: cfg.timeout,
		monitor: newMonitor(cfg.hooks),
	}
	c.calls.New = newCall
	c.bounded = c.bound()
	c.states.seed = maphash.MakeSeed()
	failures := int32(min(cfg.failures, 1<<30))
	c.breaker = breaker{client: c, policy: cfg.policy, threshold: failures, every: cfg.probe}
	c.breaker.share.init(cfg.wheel)
	c.senders.client = c
	return c, nil
}

// now is the time since the Client was made.
func (c *Client) now() time.Duration { return c.wheel.Now().Sub(c.began) }

// since is a time as the time since the Client was made.
func (c *Client) since(t time.Time) time.Duration { return t.Sub(c.began) }

// Close ends the waits with ErrClosed and returns nil when no call of the Client is in flight, or the error
// of ctx when that ends first: then waits have ended all the same, and calls in flight end by their own
// timeouts. Every call afterwards returns ErrClosed, except Delay and Wait of a Reservation, which go on
// working. Closing again waits again. The wheel and rdb stay the caller's.
func (c *Client) Close(ctx context.Context) error {
	if ctx == nil {
		return argument.Nil("context")
	}
	if c.gate.Close() {
		c.breaker.stop()
	}
	for i := range c.states.shards {
		c.states.shards[i].close()
	}
	if err := c.gate.Wait(ctx); err != nil {
		return fmt.Errorf("ratelimit: close: %w", err)
	}
	for i := range c.states.shards {
		c.states.shards[i].forgetAll()
	}
	return nil
}

// forgetAll forgets what is remembered about keys.
func (s *stateShard) forgetAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.states)
}

// close ends the waits and takes what the states have on the wheel from it. The gate is closed, so they put
// nothing there any more.
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
		if state.line != nil {
			state.line.finishAll(state.client.now(), ErrClosed)
		}
		if state.armed && state.timer.Stop() {
			state.armed = false
			unused = append(unused, state)
		}
		state.mu.Unlock()
	}
	for _, state := range unused {
		state.release()
	}
}

// enter counts something that may talk to Redis, until leave.
func (c *Client) enter() error {
	if !c.gate.Enter() {
		return ErrClosed
	}
	return nil
}

func (c *Client) leave() { c.gate.Leave() }

// inside runs f, which talks to Redis for one caller, with the state of a key, unless the Client is closed,
// and returns when f has or ctx ends, whatever Redis does. An f that is left alone goes on until rdb's own
// timeouts. It releases the state.
func inside[T any](ctx context.Context, s *keyState, operation string, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	c := s.client
	err := ctx.Err()
	if err != nil {
		err = contexts.Error(ctx)
	} else {
		err = c.enter()
	}
	if err != nil {
		s.release()
		return none, s.operationError(operation, err)
	}
	if ctx.Done() == nil {
		defer c.leave()
		defer s.release()
		value, err := f()
		return value, s.operationError(operation, err)
	}
	done := make(chan result, 1)
	go func() {
		defer c.leave()
		defer s.release()
		value, err := f()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, s.operationError(operation, r.err)
	case <-ctx.Done():
		return none, s.operationError(operation, contexts.Error(ctx))
	}
}

// refuse calls f with an error, on another goroutine than the caller's.
func (c *Client) refuse(f func(error), err error) func() {
	if _, stopped := wheelentry.AfterFunc(c.wheel, 0, func(error) { f(err) }); stopped != nil {
		go f(err)
	}
	return func() {}
}
