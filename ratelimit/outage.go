package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	defaultProbe = 250 * time.Millisecond

	// together is the maximum time between the sending of two calls that count as one failure. They fail for
	// the same reason: they are of one batch, or of two batches in flight.
	together = 20 * time.Millisecond

	// probeTimeout bounds each step of a probe.
	probeTimeout = time.Second

	// forgetAfter is the time after which a failure without enough further failures no longer counts.
	forgetAfter = time.Minute
)

// errDown is the cause if Redis is not asked.
var errDown = errors.New("circuit open")

// node identifies the node of a key. The zero node stands for all nodes whose address is not known.
type node struct {
	addr  string
	known bool
}

// breakers stop requests to a node that does not answer, so that a decision then costs no timeout. A node has a
// breaker from its first failure until it answers.
type breakers struct {
	client    *Client
	policy    Policy
	threshold int
	every     time.Duration // between two probes
	share     localShare

	some atomic.Bool // there are breakers

	mu      sync.Mutex
	all     map[node]*breaker
	last    error // cause of the last failure of any node
	stopped bool
}

// breaker is the state of one node. The mu of breakers guards it.
type breaker struct {
	of       *breakers
	node     node
	down     bool
	failures int       // failures in a row, if well is not after heard
	heard    time.Time // when the last failure was counted
	sentAt   time.Time // when the call of the last failure was sent
	well     time.Time // when the last answered call was sent
	since    time.Time // when down began
	cause    error     // cause of the last failure
	failed   *keyState // the key of the last failure
	proven   time.Time // when a check last found the node well
	timer    wheel.Timer
}

func (b *breakers) nodeOf(s *keyState) node {
	addr, known := redisconn.NodeAddr(b.client.base, s.route())
	return node{addr, known}
}

// refuse returns the reason why Redis must not be asked for a key now, or nil.
func (b *breakers) refuse(s *keyState) error {
	if !b.some.Load() {
		return nil
	}
	n := b.nodeOf(s)
	b.mu.Lock()
	defer b.mu.Unlock()
	if br := b.all[n]; br != nil && br.down {
		return unavailable(fmt.Errorf("%w: %w", errDown, br.cause))
	}
	return nil
}

// heard records the outcome of a call for a key. The call was sent at sentAt.
func (b *breakers) heard(s *keyState, err error, sentAt time.Time) {
	// An error about a key is no outage of its node.
	if !errors.Is(err, ErrUnavailable) || redisconn.Migrating(cause(err)) {
		if b.some.Load() {
			b.answered(b.nodeOf(s), sentAt)
		}
		return
	}
	n := b.nodeOf(s)
	b.mu.Lock()
	br := b.ofLocked(n)
	br.countLocked(s, cause(err), sentAt)
	began, checking := b.client.sender.LastCheck(s.route())
	checking = checking && b.client.wheel.Now().Sub(began) < b.client.timeout
	opens := !checking && br.opensLocked()
	b.mu.Unlock()
	if opens {
		br.opened()
	}
}

// opened tells of a breaker that has opened, and schedules its first probe.
func (br *breaker) opened() {
	c := br.of.client
	br.of.mu.Lock()
	err := unavailable(br.cause)
	br.of.mu.Unlock()
	name := c.nodeName(br.node)
	c.logger.Warn("ratelimit: Redis is down, the policy decides", "node", name, "error", err)
	c.tellOutage(c.monitor.hooks.Down, Event{Err: err, Node: name})
	br.arm()
}

// checked records the result of a check of a node. If the node is well, failures of calls that were sent before do
// not count: they had bad connections. Otherwise a breaker opens that has waited for the result.
func (b *breakers) checked(addr string, known bool, err error) {
	n := node{addr, known}
	b.mu.Lock()
	br := b.all[n]
	opens := false
	switch {
	case err == nil:
		br = b.ofLocked(n)
		br.proven = b.client.wheel.Now()
		if !br.down {
			br.failures = 0
		}
	case br != nil && redisconn.IsUnavailable(err):
		opens = br.opensLocked()
	}
	b.mu.Unlock()
	if opens {
		br.opened()
	}
}

// suspect checks the node of a key, of which an answer is overdue. It does so before the timeout, so that the breaker
// of a node that hangs opens without delay, and that of a node that is well stays closed.
func (b *breakers) suspect(s *keyState) {
	sender := b.client.sender
	last, checking := sender.LastCheck(s.route())
	if checking || !last.IsZero() && b.client.wheel.Now().Sub(last) < defaultProbe {
		return
	}
	sender.Check(s.route(), s.question(), errTimeout, b.client.patience/checkWithin, func(error) {})
}

// answered records that a node has answered a call. If the call was sent after the last failure, the failures
// in a row end, unless another call of its batch fails. Only a probe closes an open breaker.
func (b *breakers) answered(n node, sentAt time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	br := b.all[n]
	switch {
	case br == nil, br.down, !sentAt.After(br.heard):
	case b.client.wheel.Now().Sub(br.proven) < b.client.timeout: // calls that were sent before may fail yet
		br.well = sentAt
	case br.isWell() && !br.well.Equal(sentAt): // so the whole previous batch was answered
		b.dropLocked(br)
	default:
		br.well = sentAt
	}
}

// isWell reports whether the last call was answered.
func (br *breaker) isWell() bool { return br.well.After(br.heard) }

// ofLocked returns the breaker of a node. It drops breakers whose failures are old: their nodes may have left.
func (b *breakers) ofLocked(n node) *breaker {
	br := b.all[n]
	if br != nil {
		return br
	}
	for _, old := range b.all {
		if !old.down && b.client.wheel.Now().Sub(old.heard) > forgetAfter {
			b.dropLocked(old)
		}
	}
	if b.all == nil {
		b.all = make(map[node]*breaker)
	}
	br = &breaker{of: b, node: n}
	b.all[n] = br
	b.some.Store(true)
	return br
}

func (b *breakers) dropLocked(br *breaker) {
	delete(b.all, br.node)
	b.some.Store(len(b.all) > 0)
}

// countLocked counts a failure.
func (br *breaker) countLocked(s *keyState, cause error, sentAt time.Time) {
	b := br.of
	br.cause, br.failed, b.last = cause, s, cause
	if br.failures > 0 && sentAt.Before(br.heard) && sentAt.Sub(br.sentAt) < together {
		return
	}
	b.client.monitor.failures.Add(1)
	if sentAt.Before(br.proven) {
		return
	}
	if br.isWell() && !br.well.Equal(sentAt) {
		br.failures = 0
	}
	br.failures++
	br.heard, br.sentAt = b.client.wheel.Now(), sentAt
}

// opensLocked opens the breaker if enough calls have failed. It reports whether it did.
func (br *breaker) opensLocked() bool {
	if br.down || br.failures < br.of.threshold {
		return false
	}
	br.down, br.since = true, br.of.client.wheel.Now()
	return true
}

// up reverts the effects of an open breaker.
func (br *breaker) up() {
	b := br.of
	b.mu.Lock()
	took := b.client.wheel.Now().Sub(br.since)
	b.mu.Unlock()
	b.client.tellOutage(b.client.monitor.hooks.Up, Event{Took: took, Node: b.client.nodeName(br.node)})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dropLocked(br)
}

// arm schedules the next probe. If the wheel is stopped, there is no probe: decisions ask Redis again.
func (br *breaker) arm() {
	if !br.armed() {
		br.up()
	}
}

func (br *breaker) armed() bool {
	b := br.of
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return true
	}
	timer, err := wheelentry.AfterFunc(b.client.wheel, b.every, func(stopped error) {
		if stopped != nil {
			br.up()
			return
		}
		br.try()
	})
	br.timer = timer
	return err == nil
}

// try sends a probe, unless the key of the last failure now has another node: then this node may have left.
func (br *breaker) try() {
	b := br.of
	b.mu.Lock()
	s, cause := br.failed, br.cause
	b.mu.Unlock()
	if b.nodeOf(s) != br.node {
		br.up()
		return
	}
	b.client.sender.Check(s.route(), s.question(), cause, probeTimeout, br.probed)
}

// probed closes the breaker unless a probe has found an outage. LocalShare keeps its counts, so that a breaker that
// opens again within the period grants no second share.
func (br *breaker) probed(err error) {
	b := br.of
	if err != nil && redisconn.IsUnavailable(err) {
		b.mu.Lock()
		br.cause, b.last = err, err
		b.mu.Unlock()
		br.arm()
		return
	}
	br.up()
	b.client.logger.Info("ratelimit: Redis is back", "node", b.client.nodeName(br.node))
}

// question is the script of decisions on the key, without requests: it charges nothing and writes the state of the
// key back as it is. So it needs only the rights of decisions, and fails where they would.
func (s *keyState) question() redisconn.Question {
	return func(ctx context.Context, c scripts.Client) error {
		ask := func() error {
			call := s.algorithm.Encode(s.id.key, &algo.Ask{})
			return call.Script.RunOnce(ctx, c, call.Keys, call.Args...).Err()
		}
		err := ask()
		if s.algorithm.Follow(err) {
			err = ask()
		}
		return err
	}
}

// route returns the Redis key that decides the node.
func (s *keyState) route() string { return s.algorithm.Route(s.id.key) }

func (b *breakers) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	for _, br := range b.all {
		br.timer.Stop()
	}
	b.share.stop()
}

// worst returns the state of the node that has been down longest, or if none is down, that failed most often.
func (b *breakers) worst() Breaker {
	b.mu.Lock()
	defer b.mu.Unlock()
	var worst *breaker
	for _, br := range b.all {
		switch {
		case br.isWell() && !br.down:
		case worst == nil, br.down && !worst.down,
			br.down && br.since.Before(worst.since), !br.down && !worst.down && br.failures > worst.failures:
			worst = br
		}
	}
	if worst == nil {
		return Breaker{Err: b.last}
	}
	return Breaker{
		Node: b.client.nodeName(worst.node), Down: worst.down, Since: worst.since,
		Failures: worst.failures, Err: worst.cause,
	}
}

// decide returns the policy's decision on a request that Redis did not answer because of err.
func (b *breakers) decide(id stateID, n int64, limit algo.Limit, known bool, err error) (Result, error) {
	switch {
	case !errors.Is(err, ErrUnavailable):
		return Result{}, err
	case b.policy.kind == failOpen:
		return Result{Allowed: true, Granted: n, Limit: limit.Burst, Source: SourceDegraded}, nil
	case b.policy.kind == shareLocally && known:
		d := b.share.decide(id, n, b.policy.part(limit))
		return degraded(&d), nil
	}
	return Result{Source: SourceDegraded}, err
}

// decideAll is decide for all limits of a combination. ids are those of its parts.
func (b *breakers) decideAll(c *algo.Combination, ids []stateID, n int64, err error) (Result, error) {
	if b.policy.kind != shareLocally {
		r, err := b.decide(stateID{}, n, algo.Limit{Burst: c.Most()}, false, err)
		if err == nil {
			for _, p := range c.Parts {
				part := algo.Decision{Allowed: true, Granted: n * p.Cost, Limit: p.Limit.Burst}
				r.Parts = append(r.Parts, degraded(&part))
			}
		}
		return r, err
	}
	shares := make([]share, len(c.Parts))
	for i, p := range c.Parts {
		shares[i] = share{ids[i], n * p.Cost, b.policy.part(p.Limit)}
	}
	granted, results := b.share.decideAll(shares)
	d := c.Combine(n, results, granted && n > 0)
	return degraded(&d), nil
}

// nodeName returns the address of a node for events, or "" if it is not known.
func (c *Client) nodeName(n node) string {
	if one, single := c.base.(*redis.Client); single && !redisconn.IsSentinel(one) {
		return one.Options().Addr
	}
	return n.addr
}
