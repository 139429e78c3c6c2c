package redislock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/histogram"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Stats is what a Client or a Quorum has done since it was made, and what it holds, at one instant. Calls and
// holds are those that Hooks describes.
type Stats struct {
	Held    int // holds now: Acquired without Lost and Released; 0 after Close
	Waiting int // calls of Lock and LockFunc under way now; 0 after Close

	Acquired  int64 // calls that got the lock
	Contended int64 // calls that found the lock held by another
	Failed    int64 // calls that ended without the lock
	Lost      int64 // holds that ended before they were unlocked
	Released  int64 // holds that Unlock or Close ended

	Wait wheel.Histogram // how long the calls waited that got the lock
	Hold wheel.Histogram // how long the holds lasted that have ended

	Renewal renewal.Stats // of the watchdog; of a Quorum, the sum over its servers
}

// monitor counts what happens to the locks of a Client or a Quorum, and calls the hooks. It is safe for
// concurrent use. No hook runs under mu.
type monitor struct {
	hooks Hooks
	as    Kind // of all locks, unless ""

	mu    sync.Mutex // guards what follows
	stats Stats      // of it, what is counted
	wait  histogram.Values
	hold  histogram.Values

	// Kept if there are hooks that need them: the values of the context that acquired each hold, and the
	// hold that has an id now. A lock that is handed over within the process keeps its id.
	traced map[*Lock]context.Context
	holder map[string]*Lock
}

// traces reports whether any hook gets the context of a hold.
func (m *monitor) traces() bool {
	return m.hooks.Renewed != nil || m.hooks.Lost != nil || m.hooks.Released != nil
}

// traceLocked keeps the values of the context by which a lock was acquired, until forgetLocked.
func (m *monitor) traceLocked(ctx context.Context, l *Lock) {
	if !m.traces() {
		return
	}
	if m.traced == nil {
		m.traced, m.holder = make(map[*Lock]context.Context), make(map[string]*Lock)
	}
	m.traced[l] = context.WithoutCancel(ctx) //nolint:fatcontext // one for each hold
	m.holder[l.id] = l
}

// forgetLocked returns what traceLocked has kept, and drops it.
func (m *monitor) forgetLocked(l *Lock) context.Context {
	ctx := m.traced[l]
	delete(m.traced, l)
	if m.holder[l.id] == l {
		delete(m.holder, l.id)
	}
	return ctx
}

// tracePart is for a part of a Quorum's lock, which is reported as renewed and in no other way.
func (m *monitor) tracePart(ctx context.Context, part *Lock) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if part.Err() == nil { // otherwise forgetPart was called, or will be
		m.traceLocked(ctx, part)
	}
}

func (m *monitor) forgetPart(part *Lock) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgetLocked(part)
}

// kind returns what events call a kind.
func (m *monitor) kind(k *kind) Kind {
	if m.as != "" {
		return m.as
	}
	return k.is
}

// event returns an event of a hold.
func (m *monitor) event(ctx context.Context, l *Lock, took time.Duration) Event {
	return Event{Context: ctx, Kind: m.kind(l.kind()), Name: l.name(), ID: l.id, Token: l.token, Took: took}
}

// acquired reports that a call got a lock. If the lock has ended meanwhile, it reports that too.
func (m *monitor) acquired(ctx context.Context, l *Lock, took time.Duration) {
	m.mu.Lock()
	m.stats.Acquired++
	m.wait.Add(took)
	m.traceLocked(ctx, l)
	m.mu.Unlock()
	if m.hooks.Acquired != nil {
		m.hooks.Acquired(m.event(ctx, l, took))
	}
	if !l.reported.Announced() {
		m.reportEnd(l, l.Err())
	}
}

// contended reports that a call found the lock held.
func (m *monitor) contended(ctx context.Context, k *kind, e *LockedError, took time.Duration) {
	m.mu.Lock()
	m.stats.Contended++
	m.mu.Unlock()
	if m.hooks.Contended != nil {
		m.hooks.Contended(Event{Context: ctx, Kind: m.kind(k), Name: e.Name, Took: took, TTL: e.TTL})
	}
}

// failed reports that a call ended without the lock.
func (m *monitor) failed(ctx context.Context, k *kind, name string, took time.Duration, err error) {
	m.mu.Lock()
	m.stats.Failed++
	m.mu.Unlock()
	if m.hooks.Failed != nil {
		m.hooks.Failed(Event{Context: ctx, Kind: m.kind(k), Name: name, Took: took, Err: err})
	}
}

// refused is failed for a call that was refused at once because its context has ended. Other refusals are not
// reported.
func (m *monitor) refused(ctx context.Context, g *gate.Gate, k *kind, name string, err error) {
	if ctx != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) && g.Enter() {
		defer g.Leave()
		m.failed(ctx, k, name, 0, err)
	}
}

// ended reports that a hold has ended: as lost if the error says so, as released otherwise. It does nothing if
// that was reported before, or if the hold is not reported to have begun.
func (m *monitor) ended(l *Lock, err error) {
	if l.reported.End() {
		m.reportEnd(l, err)
	}
}

func (m *monitor) reportEnd(l *Lock, err error) {
	lost, took := errors.Is(err, ErrLost), l.client().since(l.madeAt)
	m.mu.Lock()
	if lost {
		m.stats.Lost++
	} else {
		m.stats.Released++
	}
	m.hold.Add(took)
	ctx := m.forgetLocked(l)
	m.mu.Unlock()
	e := m.event(ctx, l, took)
	switch {
	case !lost && m.hooks.Released != nil:
		m.hooks.Released(e)
	case lost && m.hooks.Lost != nil:
		e.Err = err
		m.hooks.Lost(e)
	}
}

// renewed is the Hooks.Renewed of the Renewer.
func (m *monitor) renewed(r renewal.Event) {
	m.mu.Lock()
	l := m.holder[r.ID]
	ctx := m.traced[l]
	m.mu.Unlock()
	if l != nil {
		m.hooks.Renewed(m.event(ctx, l, r.Took))
	}
}

// renewalHooks are the Hooks of the Renewer.
func (m *monitor) renewalHooks() renewal.Hooks {
	if m.hooks.Renewed == nil {
		return renewal.Hooks{}
	}
	return renewal.Hooks{Renewed: m.renewed}
}

// snapshot returns what was counted.
func (m *monitor) snapshot() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.Held = int(s.Acquired - s.Lost - s.Released)
	s.Wait, s.Hold = wheel.Histogram(m.wait), wheel.Histogram(m.hold)
	return s
}

// Stats returns what the Client has done so far. It does not block, whatever the number of locks.
func (c *Client) Stats() Stats {
	s := c.monitor.snapshot()
	s.Waiting = c.queues.Size()
	s.Renewal = c.renewer.Stats()
	return s
}

// Stats returns what the Quorum has done so far. It does not block, whatever the number of locks.
func (q *Quorum) Stats() Stats {
	s := q.monitor.snapshot()
	s.Waiting = q.queues.Size()
	var took histogram.Values
	for _, c := range q.servers {
		r := c.renewer.Stats()
		s.Renewal.Leases += r.Leases
		s.Renewal.Renewed += r.Renewed
		s.Renewal.Lost += r.Lost
		s.Renewal.Calls += r.Calls
		s.Renewal.Failures += r.Failures
		took.Merge((*histogram.Values)(&r.Took))
	}
	s.Renewal.Took = wheel.Histogram(took)
	return s
}
