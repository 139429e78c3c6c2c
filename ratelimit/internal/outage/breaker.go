// Package outage decides whether Redis is asked, and what is decided while it does not answer. It knows nothing of who
// asks.
package outage

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	// DefaultProbe is the pause between two probes, and the least one between two checks of a node.
	DefaultProbe = 250 * time.Millisecond

	// together is the maximum time between the sending of two calls that count as one failure. They fail for
	// the same reason: they are of one batch, or of two batches in flight.
	together = 20 * time.Millisecond

	// probeTimeout bounds each step of a probe.
	probeTimeout = time.Second

	// checkWithin is the part of the time for an answer in which a new connection to a suspect node must answer: the
	// result is known before the call fails.
	checkWithin = 2

	// forgetAfter is the time after which a failure without enough further failures no longer counts.
	forgetAfter = time.Minute
)

var (
	// ErrTimeout is the cause if Redis does not answer in time.
	ErrTimeout = errors.New("no answer within the timeout")
	// errDown is the cause if Redis is not asked.
	errDown = errors.New("circuit open")
)

// Key is a key in Redis about which there are calls.
type Key interface {
	Route() string                // decides the node
	Question() redisconn.Question // fails where decisions would, and changes nothing
}

// Config has the parts of a Client that Breakers use.
type Config struct {
	Base      redis.UniversalClient
	Sender    *calls.Sender
	Wheel     *wheel.Wheel
	Timeout   time.Duration // of a decision
	Patience  time.Duration // the time for an answer
	Threshold int           // failures in a row that open a breaker
	Probe     time.Duration // between two probes
	Policy    Policy

	// These are called without a lock held.
	Failed func()                                           // a failure was counted
	Down   func(node string, cause error)                   // a breaker has opened
	Up     func(node string, took time.Duration, well bool) // it has closed; well, because the node answers
}

// node identifies the node of a key. The zero node stands for all nodes whose address is not known.
type node struct {
	addr  string
	known bool
}

// Breakers stop requests to a node that does not answer, so that a decision then costs no timeout. A node has a
// breaker from its first failure until it answers.
type Breakers struct {
	Config
	share localShare

	some atomic.Bool // there are breakers

	mu      sync.Mutex
	all     map[node]*breaker
	last    error // cause of the last failure of any node
	stopped bool
}

// New returns the Breakers of a Client.
func New(cfg Config) *Breakers {
	b := &Breakers{Config: cfg}
	b.share.init(cfg.Wheel)
	return b
}

// breaker is the state of one node. The mu of Breakers guards it.
type breaker struct {
	of       *Breakers
	node     node
	down     bool
	failures int       // failures in a row, if well is not after heard
	heard    time.Time // when the last failure was counted
	sentAt   time.Time // when the call of the last failure was sent
	well     time.Time // when the last answered call was sent
	since    time.Time // when down began
	cause    error     // cause of the last failure
	failed   Key       // that of the last failure
	proven   time.Time // when a check last found the node well
	timer    wheel.Timer
}

func (b *Breakers) nodeOf(k Key) node {
	addr, known := redisconn.NodeAddr(b.Base, k.Route())
	return node{addr, known}
}

// Refuse returns the cause for which Redis must not be asked about a key now, or nil.
func (b *Breakers) Refuse(k Key) error {
	if !b.some.Load() {
		return nil
	}
	n := b.nodeOf(k)
	b.mu.Lock()
	defer b.mu.Unlock()
	if br := b.all[n]; br != nil && br.down {
		return fmt.Errorf("%w: %w", errDown, br.cause)
	}
	return nil
}

// Answered records that the node of a key has answered a call that was sent at sentAt.
func (b *Breakers) Answered(k Key, sentAt time.Time) {
	if b.some.Load() {
		b.answered(b.nodeOf(k), sentAt)
	}
}

// Unanswered records that the node of a key has not answered a call that was sent at sentAt, and why.
func (b *Breakers) Unanswered(k Key, cause error, sentAt time.Time) {
	n := b.nodeOf(k)
	b.mu.Lock()
	br := b.ofLocked(n)
	br.countLocked(k, cause, sentAt)
	began, checking := b.Sender.LastCheck(k.Route())
	checking = checking && b.Wheel.Now().Sub(began) < b.Timeout
	opens := !checking && br.opensLocked()
	b.mu.Unlock()
	if opens {
		br.opened()
	}
}

// opened tells of a breaker that has opened, and schedules its first probe.
func (br *breaker) opened() {
	br.of.mu.Lock()
	cause := br.cause
	br.of.mu.Unlock()
	br.of.Down(br.of.name(br.node), cause)
	br.arm()
}

// Checked records the result of a check of a node. If the node is well, failures of calls that were sent before do
// not count: they had bad connections. Otherwise a breaker opens that has waited for the result.
func (b *Breakers) Checked(addr string, known bool, err error) {
	n := node{addr, known}
	b.mu.Lock()
	br := b.all[n]
	opens := false
	switch {
	case err == nil:
		br = b.ofLocked(n)
		br.proven = b.Wheel.Now()
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

// Suspect checks the node of a key, of which an answer is overdue. It does so before the timeout, so that the breaker
// of a node that hangs opens without delay, and that of a node that is well stays closed.
func (b *Breakers) Suspect(k Key) {
	last, checking := b.Sender.LastCheck(k.Route())
	if checking || !last.IsZero() && b.Wheel.Now().Sub(last) < DefaultProbe {
		return
	}
	b.Sender.Check(k.Route(), k.Question(), ErrTimeout, b.Patience/checkWithin, func(error) {})
}

// answered records that a node has answered a call. If the call was sent after the last failure, the failures
// in a row end, unless another call of its batch fails. Only a probe closes an open breaker.
func (b *Breakers) answered(n node, sentAt time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	br := b.all[n]
	switch {
	case br == nil, br.down, !sentAt.After(br.heard):
	case b.Wheel.Now().Sub(br.proven) < b.Timeout: // calls that were sent before may fail yet
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
func (b *Breakers) ofLocked(n node) *breaker {
	br := b.all[n]
	if br != nil {
		return br
	}
	for _, old := range b.all {
		if !old.down && b.Wheel.Now().Sub(old.heard) > forgetAfter {
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

func (b *Breakers) dropLocked(br *breaker) {
	delete(b.all, br.node)
	b.some.Store(len(b.all) > 0)
}

// countLocked counts a failure.
func (br *breaker) countLocked(k Key, cause error, sentAt time.Time) {
	b := br.of
	br.cause, br.failed, b.last = cause, k, cause
	if br.failures > 0 && sentAt.Before(br.heard) && sentAt.Sub(br.sentAt) < together {
		return
	}
	b.Failed()
	if sentAt.Before(br.proven) {
		return
	}
	if br.isWell() && !br.well.Equal(sentAt) {
		br.failures = 0
	}
	br.failures++
	br.heard, br.sentAt = b.Wheel.Now(), sentAt
}

// opensLocked opens the breaker if enough calls have failed. It reports whether it did.
func (br *breaker) opensLocked() bool {
	if br.down || br.failures < br.of.Threshold {
		return false
	}
	br.down, br.since = true, br.of.Wheel.Now()
	return true
}

// up reverts the effects of an open breaker. well is as in Config.Up.
func (br *breaker) up(well bool) {
	b := br.of
	b.mu.Lock()
	took := b.Wheel.Now().Sub(br.since)
	b.mu.Unlock()
	b.Up(b.name(br.node), took, well)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dropLocked(br)
}

// arm schedules the next probe. If the wheel is stopped, there is no probe: decisions ask Redis again.
func (br *breaker) arm() {
	if !br.armed() {
		br.up(false)
	}
}

func (br *breaker) armed() bool {
	b := br.of
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return true
	}
	timer, err := wheelentry.AfterFunc(b.Wheel, b.Probe, func(stopped error) {
		if stopped != nil {
			br.up(false)
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
	k, cause := br.failed, br.cause
	b.mu.Unlock()
	if b.nodeOf(k) != br.node {
		br.up(false)
		return
	}
	b.Sender.Check(k.Route(), k.Question(), cause, probeTimeout, br.probed)
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
	br.up(true)
}

// Stop ends the probes.
func (b *Breakers) Stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	for _, br := range b.all {
		br.timer.Stop()
	}
	b.share.stop()
}

// State is the state of a node.
type State struct {
	Node     string // its address, or "" if it is not known
	Down     bool
	Since    time.Time
	Failures int
	Err      error // the last failure
}

// Worst returns the state of the node that has been down longest, or if none is down, that failed most often.
func (b *Breakers) Worst() State {
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
		return State{Err: b.last}
	}
	return State{
		Node: b.name(worst.node), Down: worst.down, Since: worst.since,
		Failures: worst.failures, Err: worst.cause,
	}
}

// name returns the address of a node, or "" if it is not known.
func (b *Breakers) name(n node) string {
	if one, single := b.Base.(*redis.Client); single && !redisconn.IsSentinel(one) {
		return one.Options().Addr
	}
	return n.addr
}
