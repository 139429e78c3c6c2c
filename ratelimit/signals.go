package ratelimit

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/histogram"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/keys"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Stats are the counts of a Client since New, and what it holds now. The calls that count are those that Hooks
// describes.
type Stats struct {
	Allowed int64 // calls granted, also those that waited
	Denied  int64 // calls denied, also those of ShadowDenied
	Failed  int64 // calls that returned any error, also ErrExceedsLimit, or would have without WithShadow

	// ShadowDenied counts the calls of Denied whose requests passed because of WithShadow.
	ShadowDenied int64

	// Cancelled counts the calls of Failed that their context or cancel ended, or that returned
	// ErrWouldExceedDeadline. It does not count calls that returned ErrUnavailable.
	Cancelled int64

	Local    int64 // of the calls granted or denied, those with SourceLocal
	Degraded int64 // calls that the policy granted or denied, or that returned ErrUnavailable

	Scripts  int64 // scripts sent for decisions
	Failures int64 // failures of Redis, as WithBreaker describes them, except of probes; Failed counts calls

	Waiting int  // calls of Wait, WaitN and WaitFunc that wait now; 0 after Close
	Keys    int  // keys in use or remembered in memory now; 0 after Close
	Down    bool // the policy decides now for the keys of at least one node; false after Close

	Wait wheel.Histogram // how long calls of Wait that were granted waited
	Took wheel.Histogram // how long scripts took, including those without an answer
}

// Breaker is the state of a node of Redis as a Client sees it.
type Breaker struct {
	Node     string    // its address; empty if it is not known or there are no failures
	Down     bool      // the node is not asked, and the policy decides; false after Close
	Since    time.Time // when Down began, or the zero Time
	Failures int       // failures in a row, as WithBreaker describes them; 0 after an answer
	Err      error     // the last failure; if no node has any now, the last one of any node before; nil if none
}

// outcome returns where a decision counts: 0 if it was denied, 1 if it was allowed.
func outcome(r *Result) int {
	if r.Allowed {
		return 1
	}
	return 0
}

// monitor has the counts of a Client for all keys, and its hooks. It is safe for concurrent use.
type monitor struct {
	hooks    Hooks
	reports  bool // there are hooks for calls
	failures atomic.Int64
	wait     histogram.Recorder
}

func newMonitor(h Hooks) monitor {
	return monitor{hooks: h, reports: h.Allowed != nil || h.Denied != nil || h.Failed != nil}
}

// subject identifies a call in reports.
type subject struct {
	kind      Kind
	name, key string
	n         int64
	waits     bool
	shadow    bool        // under WithShadow
	state     *keys.State // nil if the call was refused before it had one
}

// waiting returns the subject of a call that waits.
func (s subject) waiting() subject {
	s.waits = true
	return s
}

// start returns the present time by the Client's clock if the call will be reported, else 0.
func (c *Client) start() time.Duration {
	if !c.monitor.reports {
		return 0
	}
	return c.now()
}

// report counts a call that was decided without waiting, and calls the hook.
func (c *Client) report(ctx context.Context, of subject, r *Result, err error, began time.Duration) {
	if of.n == 0 || ctx == nil {
		return
	}
	c.count(ctx, of, r, err)
	if c.monitor.reports {
		c.callHook(ctx, of, r, err, c.now()-began)
	}
}

// counted counts a decision that needs no other report, and reports whether it did: the fast path for most.
func (c *Client) counted(s *keys.State, n int64, r *Result, err error) bool {
	if n == 0 || err != nil || c.monitor.reports {
		return false
	}
	c.core.CountsOf(s).Decided[r.Source&3][outcome(r)].Add(1)
	return true
}

// wait waits for the permits of a call, and reports it.
func (c *Client) wait(ctx context.Context, s *keys.State, of subject) error {
	began := c.now()
	waits, err := s.Wait(ctx, of.n, func(by algo.Source, took time.Duration, err error) {
		c.reportWait(ctx, of, Source(by), err, took)
	})
	if !waits && err != nil {
		c.report(ctx, of, &Result{}, err, began)
	}
	return err
}

// waitFunc is wait without blocking: it calls f. It releases the state.
func (c *Client) waitFunc(ctx context.Context, s *keys.State, of subject, f func(error)) (cancel func()) {
	began := c.now()
	cancel, waits, err := s.WaitFunc(ctx, of.n, func(by algo.Source, took time.Duration, err error) {
		c.apart(func() { c.reportWait(ctx, of, Source(by), err, took) })
	}, func(err error) { c.callback(f, err) })
	if waits {
		return cancel
	}
	if err != nil {
		c.report(ctx, of, &Result{}, err, began)
	}
	s.Release()
	return c.refuse(f, err)
}

// reportWait counts a call that has waited in line, and calls the hook.
func (c *Client) reportWait(ctx context.Context, of subject, source Source, err error, took time.Duration) {
	r := Result{Source: source}
	if err == nil {
		r.Allowed, r.Granted = true, of.n
		c.monitor.wait.Add(took)
	}
	c.count(ctx, of, &r, err)
	if c.monitor.reports {
		c.callHook(ctx, of, &r, err, took)
	}
}

func (c *Client) count(ctx context.Context, of subject, r *Result, err error) {
	counts := c.core.CountsOf(of.state)
	switch {
	case err == nil:
		counts.Decided[r.Source&3][outcome(r)].Add(1)
		if of.shadow && !r.Allowed {
			counts.Shadow.Add(1)
		}
	case errors.Is(err, ErrUnavailable):
		counts.Degraded.Add(1)
		counts.Failed.Add(1)
	case errors.Is(err, ErrWouldExceedDeadline), conventions.Caused(ctx, err):
		counts.Cancelled.Add(1)
	default:
		counts.Failed.Add(1)
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
		Context: ctx, Kind: of.kind, Name: of.name, Key: of.key, N: of.n,
		Shadow: of.shadow, Waited: of.waits, Took: took, Err: err, Result: *r,
	}
	if err != nil {
		e.Result = Result{Source: r.Source}
	}
	hook(e)
}

// Stats returns the counts of the Client. It does not block. It is safe for concurrent use.
func (c *Client) Stats() Stats {
	m := &c.monitor
	s := Stats{
		Scripts: c.core.Scripts.Load(), Failures: m.failures.Load(), Waiting: int(c.core.Waiting.Load()),
		Down: c.Breaker().Down,
		Wait: wheel.Histogram(m.wait.Values()), Took: wheel.Histogram(c.core.Took.Values()),
	}
	for counts := range c.core.AllCounts {
		for source := range counts.Decided {
			denied := counts.Decided[source][0].Load()
			allowed := counts.Decided[source][1].Load()
			s.Denied += denied
			s.Allowed += allowed
			switch Source(source) {
			case SourceLocal:
				s.Local += denied + allowed
			case SourceDegraded:
				s.Degraded += denied + allowed
			}
		}
		s.ShadowDenied += counts.Shadow.Load()
		s.Degraded += counts.Degraded.Load()
		cancelled := counts.Cancelled.Load()
		s.Cancelled += cancelled
		s.Failed += counts.Failed.Load() + cancelled
	}
	s.Keys = c.core.Count(func(keys.ID) bool { return true })
	return s
}

// Breaker returns the state of the node that has been down longest, or if none is down, of the node with the
// most failures. It does not block. It is safe for concurrent use.
func (c *Client) Breaker() Breaker {
	b := Breaker(c.core.Breakers.Worst())
	if c.gate.Closed() {
		b.Down, b.Since = false, time.Time{}
	}
	return b
}
