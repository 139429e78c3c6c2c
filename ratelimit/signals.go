package ratelimit

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/histogram"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Stats is what a Client has done since it was made, and what it keeps, at one instant. Calls are those that
// Hooks describes.
type Stats struct {
	Allowed  int64 // calls granted, also those that waited
	Denied   int64 // calls denied
	Failed   int64 // calls that returned an error
	Local    int64 // of the calls granted or denied, those with SourceLocal
	Degraded int64 // calls that the policy decided: granted, denied or failed

	Scripts  int64 // scripts sent for decisions
	Failures int64 // pipelines of scripts that Redis did not answer, without probes of the breaker

	Waiting int  // calls of Wait, WaitN and WaitFunc that wait now; 0 after Close
	Keys    int  // keys that are in use or remembered in memory now; 0 after Close
	Down    bool // the policy decides now; false after Close

	Wait wheel.Histogram // how long the calls waited that Wait granted
	Took wheel.Histogram // how long the pipelines of scripts took, those without an answer included
}

// Breaker is how a Client sees Redis.
type Breaker struct {
	Down     bool      // Redis is not asked: the policy decides; false after Close
	Since    time.Time // when Down began, or the zero Time
	Failures int       // pipelines of scripts in a row that Redis did not answer, 0 after an answer
	Err      error     // of the last one, kept after Redis answers again; nil if there never was one
}

// counters count the calls for some keys. All of a decision is counted by one addition, since there are tens
// of millions of them a second when keys are exhausted.
type counters struct {
	decided  [4][2]atomic.Int64 // by Source, denied and allowed
	failed   atomic.Int64
	degraded atomic.Int64 // of them, by the policy
}

// monitor is what a Client counts for all keys, and its hooks. It is safe for concurrent use.
type monitor struct {
	hooks    Hooks
	reports  bool // there are hooks for calls
	scripts  atomic.Int64
	failures atomic.Int64
	waiting  atomic.Int64
	wait     histogram.Recorder
	took     histogram.Recorder
}

func newMonitor(h Hooks) monitor {
	return monitor{hooks: h, reports: h.Allowed != nil || h.Denied != nil || h.Failed != nil}
}

// subject is what a call is about.
type subject struct {
	kind      Kind
	name, key string
	n         int64
	waits     bool
	state     *keyState // nil if the call was refused before it had one
}

// waiting returns the subject of a call that waits.
func (s subject) waiting() subject {
	s.waits = true
	return s
}

// start returns when a call has begun, by the Client's clock, if that is to be reported.
func (c *Client) start() time.Duration {
	if !c.monitor.reports {
		return 0
	}
	return c.now()
}

// report counts a call that was decided without waiting, and calls the hook.
func (c *Client) report(ctx context.Context, of subject, r *Result, err error, began time.Duration) {
	if of.n == 0 || err != nil && (errors.Is(err, ErrClosed) || errors.Is(err, cogwheel.ErrInvalid)) {
		return
	}
	c.count(of, r, err)
	if c.monitor.reports {
		c.callHook(ctx, of, r, err, c.now()-began)
	}
}

// counted counts a decision if that is all there is to report: the short way for most.
func (s *keyState) counted(n int64, r *Result, err error) bool {
	if n == 0 || err != nil || s.client.monitor.reports {
		return false
	}
	s.shard.counts.decided[r.Source&3][flag(r.Allowed)].Add(1)
	return true
}

// reportWait counts a call that has waited in line, and calls the hook.
func (c *Client) reportWait(ctx context.Context, of subject, source Source, err error, took time.Duration) {
	r := Result{Source: source}
	if err == nil {
		r.Allowed, r.Granted = true, of.n
		c.monitor.wait.Add(took)
	}
	c.count(of, &r, err)
	if c.monitor.reports {
		c.callHook(ctx, of, &r, err, took)
	}
}

func (c *Client) count(of subject, r *Result, err error) {
	counts := &c.states.shards[0].counts
	if of.state != nil {
		counts = &of.state.shard.counts
	}
	switch {
	case err == nil:
		counts.decided[r.Source&3][flag(r.Allowed)].Add(1)
	case errors.Is(err, ErrUnavailable):
		counts.degraded.Add(1)
		counts.failed.Add(1)
	default:
		counts.failed.Add(1)
	}
}

func (c *Client) callHook(ctx context.Context, of subject, r *Result, err error, took time.Duration) {
	h := &c.monitor.hooks
	hook := h.Denied
	switch {
	case err != nil:
		hook = h.Failed
	case r.Allowed:
		hook = h.Allowed
	}
	if hook == nil {
		return
	}
	e := Event{
		Context: ctx, Kind: of.kind, Name: of.name, Key: of.key, N: of.n, Waited: of.waits, Took: took, Err: err,
		Result: *r,
	}
	if err != nil {
		e.Result = Result{Source: r.Source}
	}
	hook(e)
}

// Stats returns what the Client has done so far. It does not block.
func (c *Client) Stats() Stats {
	m := &c.monitor
	s := Stats{
		Scripts: m.scripts.Load(), Failures: m.failures.Load(), Waiting: int(m.waiting.Load()),
		Down: c.breaker.down.Load() && !c.gate.Closed(),
		Wait: wheel.Histogram(m.wait.Values()), Took: wheel.Histogram(m.took.Values()),
	}
	for i := range c.states.shards {
		shard := &c.states.shards[i]
		for source := range shard.counts.decided {
			denied := shard.counts.decided[source][0].Load()
			allowed := shard.counts.decided[source][1].Load()
			s.Denied += denied
			s.Allowed += allowed
			switch Source(source) {
			case SourceLocal:
				s.Local += denied + allowed
			case SourceDegraded:
				s.Degraded += denied + allowed
			}
		}
		s.Degraded += shard.counts.degraded.Load()
		s.Failed += shard.counts.failed.Load()
		shard.mu.Lock()
		s.Keys += len(shard.states)
		shard.mu.Unlock()
	}
	return s
}

// Breaker returns how the Client sees Redis now. It does not block.
func (c *Client) Breaker() Breaker {
	b := &c.breaker
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Breaker{Failures: int(b.failures.Load()), Err: b.cause}
	if s.Down = b.down.Load() && !c.gate.Closed(); s.Down {
		s.Since = b.since
	}
	return s
}
