package renewal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/usercode"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
)

// Outcome is the answer of a backend for one lease.
type Outcome uint8

const (
	// OutcomeUnknown means that the backend gave no answer: the lease keeps its deadline, and the renewal is retried
	// soon.
	OutcomeUnknown Outcome = iota
	// OutcomeExtended means that the lease lasts for a full TTL from some instant after the call began.
	OutcomeExtended
	// OutcomeGone means that the backend no longer knows the lease: it is lost at once.
	OutcomeGone
)

// String returns the outcome in words: "unknown", "extended" or "gone".
func (o Outcome) String() string {
	if o > OutcomeGone {
		return fmt.Sprintf("Outcome(%d)", uint8(o))
	}
	return [...]string{"unknown", "extended", "gone"}[o]
}

// Ref names one lease of a batch.
type Ref struct {
	Key, ID string
	TTL     time.Duration // how long the lease must last from now, at least
}

// Batch is the content of one call. The slices belong to the Renewer and must not be kept after Renew returns.
type Batch struct {
	Leases   []Ref
	Outcomes []Outcome // one per lease, all Unknown at first; the backend sets the elements
}

// Backend renews leases at one destination.
type Backend interface {
	// Renew makes every lease of b last for at least its TTL from now, if its key is still held under its ID,
	// and sets the outcomes. It must not shorten a lease. An error or a panic is the cause for leases left
	// OutcomeUnknown; the other outcomes count nevertheless.
	//
	// Several calls may run at the same time. Renew must return when ctx ends; until it does, it counts as one
	// of the four calls of the Destination. ctx ends with the Close of the Renewer, or after a sixth of the
	// shortest TTL of b; if that is below 250 ms, after 250 ms or half of that TTL, whichever is less.
	Renew(ctx context.Context, b *Batch) error
}

const (
	batchSize = 500 // maximum number of leases in one call
	maxCalls  = 4   // maximum number of calls of a Destination in flight
)

// Destination collects leases of one backend that are due together, and renews them in batches. It is safe for
// concurrent use.
type Destination struct {
	renewer *Renewer
	backend Backend

	// Due leases wait in due, a stack linked by nextDue, until the window closes. A lease is pushed before
	// closeAt is read, and closeAt is reset before the stack is taken, so each lease has a window that will
	// close.
	due     atomic.Pointer[Lease]
	closeAt atomic.Int64 // when the window of due ends, in nanoseconds since renewer.origin; 0 if none is open

	mu      sync.Mutex // guards the fields below
	ready   [][]*Lease // batches to be sent
	calls   int        // goroutines that send them, at most maxCalls; each ends when ready is empty
	failing bool       // the last call failed
}

// Add starts to renew a lease that its holder has just obtained. The first renewal is at random a sixth to a
// third of the TTL after SentAt, the next ones at about every third. Add does not block.
//
// It returns a *LostError if the deadline has already passed, ErrClosed after Renewer.Close, wheel.ErrStopped if
// the wheel is stopped, or a *cogwheel.InvalidError. Then nothing is renewed, neither OnLost nor a hook is called,
// and the caller should give the lease back.
func (d *Destination) Add(s Spec) (*Lease, error) { return d.renewer.add(d, s) }

// enqueue adds a due lease. It takes no lock: it runs in the callbacks of many entries at a time, and a wheel
// whose callbacks block starts more goroutines.
func (d *Destination) enqueue(l *Lease, now time.Time) {
	for {
		l.nextDue = d.due.Load()
		if d.due.CompareAndSwap(l.nextDue, l) {
			break
		}
	}
	wait := batchDelay(l.ttl)
	end := int64(now.Sub(d.renewer.origin) + wait)
	for {
		at := d.closeAt.Load()
		if at != 0 && at <= end {
			return // the open window closes soon enough
		}
		if d.closeAt.CompareAndSwap(at, end) {
			break
		}
	}
	if _, err := wheelentry.AfterFunc(d.renewer.wheel, wait, d.closeWindow); err != nil {
		d.closeWindow(err)
	}
}

// closeWindow cuts the due leases into batches and starts as many calls as they need and the limit allows.
// After the stop of the wheel it drops the due leases, because they are lost.
func (d *Destination) closeWindow(stopped error) {
	d.closeAt.Store(0) // first: a lease that becomes due from now on opens a new window
	var due []*Lease
	for l := d.due.Swap(nil); l != nil; {
		next := l.nextDue
		l.nextDue = nil
		due = append(due, l)
		l = next
	}
	if stopped != nil {
		return
	}
	d.mu.Lock()
	d.ready = append(d.ready, cut(due)...)
	start := min(len(d.ready), maxCalls-d.calls)
	d.calls += start
	d.mu.Unlock()
	for range start {
		if d.renewer.gate.Enter() {
			d.renewer.gate.Workers.Go(d.sendBatches)
		}
	}
}

// cut sorts leases by TTL, the shortest first, and cuts them into batches of at most batchSize leases. The
// shortest TTL of a batch sets the timeout of its call, so leases of similar TTLs share one.
func cut(leases []*Lease) [][]*Lease {
	byTTL := func(a, b *Lease) int { return cmp.Compare(a.ttl, b.ttl) }
	if !slices.IsSortedFunc(leases, byTTL) {
		slices.SortStableFunc(leases, byTTL)
	}
	return slices.Collect(slices.Chunk(leases, batchSize))
}

// sendBatches sends batches until there are none.
func (d *Destination) sendBatches() {
	for leases := d.next(); leases != nil; leases = d.next() {
		d.send(leases)
	}
	d.renewer.gate.Leave()
}

// next returns the leases of the next batch, or nil if there is none.
func (d *Destination) next() (leases []*Lease) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.ready) == 0 {
		d.ready = nil
		d.calls--
		return nil
	}
	leases, d.ready = d.ready[0], d.ready[1:]
	return leases
}

// call is a call of a backend.
type call struct {
	dest     *Destination
	leases   []*Lease
	batch    Batch
	outcomes []Outcome // of batch, which the backend may change
	sentAt   time.Time
}

// send sends a batch. If the backend ends the goroutine, another one goes on with the batches.
func (d *Destination) send(leases []*Lease) {
	sentAt := d.renewer.now()
	leases = slices.DeleteFunc(leases, func(l *Lease) bool { return !l.joinCall() })
	if len(leases) == 0 {
		return
	}
	outcomes := make([]Outcome, len(leases))
	c := &call{
		dest: d, leases: leases, sentAt: sentAt, outcomes: outcomes,
		batch: Batch{Leases: make([]Ref, len(leases)), Outcomes: outcomes},
	}
	for i, l := range leases {
		c.batch.Leases[i] = Ref{l.key, l.id, l.ttl}
	}
	ctx, cancel := context.WithTimeout(d.renewer.ctx, callTimeout(leases[0].ttl))
	defer cancel()
	var err error
	usercode.Here(func() { err = d.backend.Renew(ctx, &c.batch) }, func(f *usercode.Failure) {
		err = fmt.Errorf("renewal: the backend %w", f)
		d.renewer.config.logger.LogAttrs(ctx, slog.LevelError, "renewal: the backend panicked",
			slog.Any("panic", f.Value), slog.String("stack", f.Stack))
		if f.Exited {
			c.continueAfter(err)
		}
	})
	c.finish(err)
}

// continueAfter goes on with the batches after a call whose goroutine the backend has ended.
func (c *call) continueAfter(failure error) {
	c.dest.renewer.gate.Workers.Go(func() {
		c.finish(failure)
		c.dest.sendBatches()
	})
}

// finish applies the outcomes of a call. An error of the backend is the cause for leases left Unknown.
func (c *call) finish(failure error) {
	d := c.dest
	took := d.renewer.wheel.Now().Sub(c.sentAt)
	d.report(failure, took, len(c.leases))
	explained := cmp.Or(failure, errUnanswered)
	renewed := c.leases[:0]
	for i, l := range c.leases {
		if l.finishCall(c.outcomes[i], c.sentAt, explained) {
			renewed = append(renewed, l)
		}
	}
	d.renewer.counts.called(took, len(renewed), failure)
	if hook := d.renewer.config.hooks.Renewed; hook != nil {
		for _, l := range renewed {
			d.renewer.call(hook, Event{Key: l.key, ID: l.id, Leases: 1, Took: took})
		}
	}
}

var errUnanswered = errors.New("renewal: the backend left the lease unanswered")

// report logs the first of several failures and the recovery, not the calls between them.
func (d *Destination) report(err error, took time.Duration, n int) {
	if hook := d.renewer.config.hooks.Failed; hook != nil && err != nil {
		d.renewer.call(hook, Event{Leases: n, Took: took, Err: err})
	}
	d.mu.Lock()
	changed := d.failing != (err != nil)
	d.failing = err != nil
	d.mu.Unlock()
	if !changed || d.renewer.ctx.Err() != nil {
		return
	}
	if logger := d.renewer.config.logger; err != nil {
		logger.Warn("renewal: calls fail and are retried until the deadlines", "leases", n, "error", err)
	} else {
		logger.Info("renewal: calls succeed again")
	}
}
