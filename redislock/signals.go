package redislock

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/histogram"
	"github.com/cogwheel-go/cogwheel/internal/signals"
	"github.com/cogwheel-go/cogwheel/internal/usercode"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Stats are the counts of a Client or a Quorum since it was made, and what it holds now. The calls and holds
// that count are those that Hooks describes.
type Stats struct {
	Held    int // locks held now: Acquired without Lost and Released; 0 after Close
	Waiting int // calls of Lock and LockFunc that are in progress now; 0 after Close

	Acquired  int64 // calls that got the lock
	Contended int64 // calls that found the lock held by another
	Failed    int64 // calls that ended without the lock
	Refused   int64 // of Failed, calls whose error matches ErrLocked
	Cancelled int64 // of Failed, other calls that their context or cancel ended
	Lost      int64 // holds that ended before they were unlocked
	Released  int64 // holds that Unlock or Close ended

	// Err is the error of the last renewal, release in the background or call of a wait that failed and is repeated, or
	// of the last of the calls that Failed counts and Refused and Cancelled do not. It is nil if there was none, and
	// stays after a recovery: ErrAt tells how old it is.
	Err   error
	ErrAt time.Time // when that was; zero if Err is nil

	Wait wheel.Histogram // how long calls waited that got the lock
	Hold wheel.Histogram // how long holds that have ended lasted

	Renewal renewal.Stats // the renewals of the watchdog; for a Quorum, the sum over its servers
}

// monitor counts the events of a Client or a Quorum, and calls the hooks. It is safe for concurrent use. No
// hook runs under mu.
type monitor struct {
	hooks  Hooks
	logger *slog.Logger
	as     Kind // the Kind of all locks, unless ""

	mu    sync.Mutex // guards what follows
	stats Stats      // only the counts
	wait  histogram.Values
	hold  histogram.Values

	failures signals.Failures

	// Kept only for hooks that need them: the values of the context that acquired each hold, and the hold that
	// has an id now. A lock that is handed over within the process keeps its id.
	traced map[*identity]context.Context
	holder map[string]*identity
}

// traces reports whether any hook gets the context of a hold.
func (m *monitor) traces() bool {
	return m.hooks.Renewed != nil || m.hooks.Lost != nil || m.hooks.Released != nil
}

// trace is traceLocked for a lock that a call has acquired.
func (m *monitor) trace(ctx context.Context, i *identity) {
	if m.traces() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.traceLocked(ctx, i)
	}
}

// traceLocked keeps the values of the context that acquired a lock, until forgetLocked.
func (m *monitor) traceLocked(ctx context.Context, i *identity) {
	if !m.traces() {
		return
	}
	if m.traced == nil {
		m.traced, m.holder = make(map[*identity]context.Context), make(map[string]*identity)
	}
	m.traced[i] = context.WithoutCancel(ctx) //nolint:fatcontext // one for each hold
	m.holder[i.id] = i
}

// forgetLocked returns and drops the context that traceLocked kept.
func (m *monitor) forgetLocked(i *identity) context.Context {
	ctx := m.traced[i]
	delete(m.traced, i)
	if m.holder[i.id] == i {
		delete(m.holder, i.id)
	}
	return ctx
}

// tracePart is traceLocked for a part of a Quorum's lock, for which only Renewed is reported.
func (m *monitor) tracePart(ctx context.Context, part *held) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if part.Err() == nil { // else forgetPart was called, or will be
		m.traceLocked(ctx, &part.identity)
	}
}

func (m *monitor) forgetPart(part *held) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgetLocked(&part.identity)
}

// kind returns the Kind of a kind in events.
func (m *monitor) kind(k *kind) Kind {
	if m.as != "" {
		return m.as
	}
	return k.is
}

// event returns an event of a hold.
func (m *monitor) event(ctx context.Context, i *identity, took time.Duration) Event {
	return Event{Context: ctx, Kind: m.kind(i.kind()), Name: i.name(), ID: i.id, Token: i.token, Took: took}
}

// acquired reports that a call got a lock. If the lock has ended meanwhile, it reports the end too.
func (m *monitor) acquired(ctx context.Context, b body, took time.Duration) {
	i := b.known()
	m.mu.Lock()
	m.stats.Acquired++
	m.wait.Add(took)
	m.mu.Unlock()
	m.call(m.hooks.Acquired, m.event(ctx, i, took))
	m.trace(ctx, i) // from now on, renewals are reported
	if !i.reported.Announced() {
		m.reportEnd(i, b.Err())
	}
}

// contended reports that a call found the lock held.
func (m *monitor) contended(ctx context.Context, k *kind, e *LockedError, took time.Duration) {
	m.mu.Lock()
	m.stats.Contended++
	m.mu.Unlock()
	m.call(m.hooks.Contended, Event{Context: ctx, Kind: m.kind(k), Name: e.Name, Took: took, TTL: e.TTL})
}

// failed reports that a call ended without the lock.
func (m *monitor) failed(ctx context.Context, k *kind, name string, took time.Duration, err error) {
	m.mu.Lock()
	m.stats.Failed++
	switch {
	case errors.Is(err, ErrLocked):
		m.stats.Refused++
	case conventions.Caused(ctx, err):
		m.stats.Cancelled++
	default:
		m.failures.Keep(err)
	}
	m.mu.Unlock()
	m.call(m.hooks.Failed, Event{Context: ctx, Kind: m.kind(k), Name: name, Took: took, Err: err})
}

// repeated keeps the error of a call that is repeated: of a wait that goes on, or of a release in the background. It
// logs the first of several.
func (m *monitor) repeated(err error) {
	m.mu.Lock()
	first := m.failures.Repeated(err)
	m.mu.Unlock()
	if first {
		m.logger.LogAttrs(context.Background(), slog.LevelWarn,
			"redislock: waits and releases fail and are repeated", slog.Any("error", err))
	}
}

// renewalFailed is the Hooks.Failed of the Renewer.
func (m *monitor) renewalFailed(r renewal.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failures.Keep(r.Err)
}

// refused reports the failure of a call that was refused because its context has ended. It does not report
// other refusals.
func (m *monitor) refused(ctx context.Context, g *gate.Gate, k *kind, name string, err error) {
	if ctx != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) && g.Enter() {
		defer g.Leave()
		m.failed(ctx, k, name, 0, err)
	}
}

// ended reports the end of a hold: as lost if err matches ErrLost, otherwise as released. It does nothing if
// the end was reported before, or the begin was not reported.
func (m *monitor) ended(i *identity, err error) {
	if i.reported.Over() {
		m.reportEnd(i, err)
	}
}

func (m *monitor) reportEnd(i *identity, err error) {
	lost, took := errors.Is(err, ErrLost), i.client().clock.Since(i.madeAt)
	m.mu.Lock()
	if lost {
		m.stats.Lost++
	} else {
		m.stats.Released++
	}
	m.hold.Add(took)
	ctx := m.forgetLocked(i)
	m.mu.Unlock()
	e := m.event(ctx, i, took)
	if lost {
		e.Err = err
		m.call(m.hooks.Lost, e)
	} else {
		m.call(m.hooks.Released, e)
	}
}

// call calls a hook, unless it is nil.
func (m *monitor) call(hook func(Event), e Event) {
	if hook != nil {
		usercode.Apart(func() { hook(e) }, m.panicked)
	}
}

// callback calls the function of a LockFunc, on a goroutine with nothing else to do.
func (m *monitor) callback(f func()) { usercode.Here(f, m.panicked) }

func (m *monitor) panicked(f *usercode.Failure) {
	m.logger.LogAttrs(context.Background(), slog.LevelError, "redislock: a hook or callback panicked",
		slog.Any("panic", f.Value), slog.String("stack", f.Stack))
}

// renewed is the Hooks.Renewed of the Renewer. The end of the hold is reported after the hook has returned.
func (m *monitor) renewed(r renewal.Event) {
	m.mu.Lock()
	i := m.holder[r.ID]
	ctx := m.traced[i]
	m.mu.Unlock()
	if i != nil {
		i.reported.Renewed(func() { m.call(m.hooks.Renewed, m.event(ctx, i, r.Took)) })
	}
}

// renewalHooks are the Hooks of the Renewer.
func (m *monitor) renewalHooks() renewal.Hooks {
	hooks := renewal.Hooks{Failed: m.renewalFailed}
	if m.hooks.Renewed != nil {
		hooks.Renewed = m.renewed
	}
	return hooks
}

// snapshot returns the counts.
func (m *monitor) snapshot() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.ErrAt, s.Err = m.failures.Last()
	s.Held = int(s.Acquired - s.Lost - s.Released)
	s.Wait, s.Hold = wheel.Histogram(m.wait), wheel.Histogram(m.hold)
	return s
}

// Stats returns the counts of the Client. It does not block, however many locks there are. It is safe for
// concurrent use.
func (c *Client) Stats() Stats {
	s := c.monitor.snapshot()
	s.Waiting = c.queues.Size()
	s.Renewal = c.redis.Renewer.Stats()
	return s
}

// Stats returns the counts of the Quorum. It does not block, however many locks there are. It is safe for
// concurrent use.
func (q *Quorum) Stats() Stats {
	s := q.monitor.snapshot()
	s.Waiting = q.queues.Size()
	var took histogram.Values
	for _, c := range q.servers {
		if part := c.monitor.snapshot(); part.ErrAt.After(s.ErrAt) {
			s.Err, s.ErrAt = part.Err, part.ErrAt
		}
		r := c.redis.Renewer.Stats()
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
