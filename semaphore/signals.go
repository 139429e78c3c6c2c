package semaphore

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/client"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/histogram"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/signals"
	"github.com/cogwheel-go/cogwheel/internal/usercode"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Stats are the counts of a Client since New, and what it holds now. The calls and grants that count are
// those that Hooks describes.
type Stats struct {
	Grants  int   // grants held now: Acquired without Lost and Released; 0 after Close
	Held    int64 // permits of these grants; 0 after Close
	Waiting int   // calls of Acquire, TryAcquire and AcquireFunc that are in progress now; 0 after Close

	Acquired int64 // calls on Semaphores that got a grant; for CountingSemaphores see Taken
	Lost     int64 // grants that ended before they were released
	Released int64 // grants that Release or Close ended

	Taken    int64 // permits that calls on CountingSemaphores took
	Returned int64 // permits that calls on CountingSemaphores released, confirmed or not

	Contended int64 // calls, on any kind, that found too few free permits
	Failed    int64 // calls, on any kind, that ended without permits
	Refused   int64 // of Failed, calls whose error matches ErrNoPermits
	Cancelled int64 // of Failed, calls that their context or cancel ended

	// Err is the error of the last renewal, release in the background or call of a wait that failed and is repeated, or
	// of the last of the calls that Failed counts and Refused and Cancelled do not. It is nil if there was none, and
	// stays after a recovery: ErrAt tells how old it is.
	Err   error
	ErrAt time.Time // when that was; zero if Err is nil

	Wait wheel.Histogram // how long calls that got permits waited, on any kind
	Hold wheel.Histogram // how long grants that have ended were held

	Renewal renewal.Stats // the renewals in the background
}

// monitor counts the events of the permits of a Client, and calls the hooks. It is safe for concurrent use. No
// hook runs under mu.
type monitor struct {
	hooks  Hooks
	logger *slog.Logger
	clock  client.Clock // of the times of calls and grants

	mu    sync.Mutex // guards what follows
	stats Stats      // only the counts
	wait  histogram.Values
	hold  histogram.Values

	failures signals.Failures

	traced map[string]tracedGrant // by the ids of its permits, if there are hooks that need them
}

// tracedGrant is a grant with the values of the context that acquired it.
type tracedGrant struct {
	held *held
	ctx  context.Context
}

// acquisition is one call for n permits, for the reports. A call of the background has no context and is not
// reported.
type acquisition struct {
	ctx       context.Context
	n         int64
	began     time.Duration // by the clock
	contended bool          // Contended was reported: Redis has found too few permits
	trouble   redisconn.Endurance
}

// object identifies the target of a call.
type object struct {
	kind Kind
	name string
}

// call calls a hook.
func (m *monitor) call(hook func(Event), e Event) { usercode.Apart(func() { hook(e) }, m.panicked) }

// callback calls the function of an AcquireFunc, on a goroutine with nothing else to do.
func (m *monitor) callback(f func()) { usercode.Here(f, m.panicked) }

func (m *monitor) panicked(f *usercode.Failure) {
	m.logger.LogAttrs(context.Background(), slog.LevelError, "semaphore: a hook or callback panicked",
		slog.Any("panic", f.Value), slog.String("stack", f.Stack))
}

// kindOf returns the kind of a Semaphore.
func kindOf(fair bool) Kind {
	if fair {
		return KindFair
	}
	return KindSemaphore
}

func (m *monitor) event(of object, a *acquisition) Event {
	return Event{Context: a.ctx, Kind: of.kind, Name: of.name, Permits: a.n, Took: m.clock.Since(a.began)}
}

func (h *held) event(ctx context.Context, took time.Duration) Event {
	return Event{
		Context: ctx, Kind: kindOf(h.fair), Name: h.name, Permits: int64(len(h.ids)), IDs: h.hexIDs(), Token: h.token,
		Took: took,
	}
}

// taken reports that a call got permits of a CountingSemaphore.
func (m *monitor) taken(of object, a *acquisition) {
	e := m.event(of, a)
	m.mu.Lock()
	m.stats.Taken += a.n
	m.wait.Add(e.Took)
	m.mu.Unlock()
	if m.hooks.Acquired != nil {
		m.call(m.hooks.Acquired, e)
	}
}

// returned reports a Release of a CountingSemaphore.
func (m *monitor) returned(ctx context.Context, name string, n int64, took time.Duration) {
	m.mu.Lock()
	m.stats.Returned += n
	m.mu.Unlock()
	if m.hooks.Released != nil {
		m.call(m.hooks.Released, Event{Context: ctx, Kind: KindCounting, Name: name, Permits: n, Took: took})
	}
}

// acquired reports that a call got a grant. If the grant has ended meanwhile, it reports the end too.
func (m *monitor) acquired(a *acquisition, h *held) {
	took := h.madeAt - a.began
	m.mu.Lock()
	m.stats.Acquired++
	m.stats.Held += int64(len(h.ids))
	m.wait.Add(took)
	m.mu.Unlock()
	if m.hooks.Acquired != nil {
		m.call(m.hooks.Acquired, h.event(a.ctx, took))
	}
	m.trace(a.ctx, h) // from now on, renewals are reported
	if !h.reported.Announced() {
		m.reportEnd(h, h.Err())
	}
}

// trace keeps the values of the context that acquired a grant, for hooks that get them.
func (m *monitor) trace(ctx context.Context, h *held) {
	if m.hooks.Renewed == nil && m.hooks.Lost == nil && m.hooks.Released == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.traced == nil {
		m.traced = make(map[string]tracedGrant)
	}
	m.traced[h.leaseID()] = tracedGrant{h, context.WithoutCancel(ctx)}
}

// contendedAll is contended for several calls.
func (m *monitor) contendedAll(of object, all []*acquisition) {
	for _, a := range all {
		m.contended(of, a)
	}
}

// contended reports once that a call found too few permits.
func (m *monitor) contended(of object, a *acquisition) {
	if a.contended || a.ctx == nil {
		return
	}
	a.contended = true
	m.mu.Lock()
	m.stats.Contended++
	m.mu.Unlock()
	if m.hooks.Contended != nil {
		m.call(m.hooks.Contended, m.event(of, a))
	}
}

// failed reports that a call ended without the permits.
func (m *monitor) failed(of object, a *acquisition, err error) {
	m.mu.Lock()
	m.stats.Failed++
	switch {
	case errors.Is(err, ErrNoPermits):
		m.stats.Refused++
	case conventions.Caused(a.ctx, err):
		m.stats.Cancelled++
	default:
		m.failures.Keep(err)
	}
	m.mu.Unlock()
	if m.hooks.Failed != nil {
		e := m.event(of, a)
		e.Err = err
		m.call(m.hooks.Failed, e)
	}
}

// repeated keeps the error of a call that is repeated: of a wait that goes on, or of a release in the background. It
// logs the first of several.
func (m *monitor) repeated(err error) {
	m.mu.Lock()
	first := m.failures.Repeated(err)
	m.mu.Unlock()
	if first {
		m.logger.LogAttrs(context.Background(), slog.LevelWarn,
			"semaphore: waits and releases fail and are repeated", slog.Any("error", err))
	}
}

// renewalFailed is the Hooks.Failed of the Renewer.
func (m *monitor) renewalFailed(r renewal.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failures.Keep(r.Err)
}

// renewed is the Hooks.Renewed of the Renewer. The end of the grant is reported after the hook has returned.
func (m *monitor) renewed(r renewal.Event) {
	m.mu.Lock()
	t, held := m.traced[r.ID]
	m.mu.Unlock()
	if held {
		t.held.reported.Renewed(func() { m.call(m.hooks.Renewed, t.held.event(t.ctx, r.Took)) })
	}
}

// refused reports the failure of a call that was refused because its context has ended, or because it asks for
// more permits than there can be. It does not report other refusals.
func (m *monitor) refused(g *gate.Gate, of object, a *acquisition, err error) {
	ended := a.ctx != nil && a.ctx.Err() != nil && errors.Is(err, a.ctx.Err())
	if a.n > 0 && (ended || errors.Is(err, ErrExceedsPermits)) && g.Enter() {
		defer g.Leave()
		m.failed(of, a, err)
	}
}

// ended reports the end of a grant: as lost if err matches ErrLost, otherwise as released. It does nothing if
// the end was reported before, or the begin was not reported.
func (m *monitor) ended(h *held, err error) {
	if h.reported.Over() {
		m.reportEnd(h, err)
	}
}

func (m *monitor) reportEnd(h *held, err error) {
	lost, took := errors.Is(err, ErrLost), m.clock.Since(h.madeAt)
	m.mu.Lock()
	if lost {
		m.stats.Lost++
	} else {
		m.stats.Released++
	}
	m.stats.Held -= int64(len(h.ids))
	m.hold.Add(took)
	var ctx context.Context
	if m.traced != nil {
		id := h.leaseID()
		ctx = m.traced[id].ctx
		delete(m.traced, id)
	}
	m.mu.Unlock()
	switch {
	case !lost && m.hooks.Released != nil:
		m.call(m.hooks.Released, h.event(ctx, took))
	case lost && m.hooks.Lost != nil:
		e := h.event(ctx, took)
		e.Err = err
		m.call(m.hooks.Lost, e)
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

// Stats returns the counts of the Client. It does not block, however many grants there are. It is safe for
// concurrent use.
func (c *Client) Stats() Stats {
	m := &c.monitor
	m.mu.Lock()
	s := m.stats
	s.ErrAt, s.Err = m.failures.Last()
	s.Wait, s.Hold = wheel.Histogram(m.wait), wheel.Histogram(m.hold)
	m.mu.Unlock()
	s.Grants = int(s.Acquired - s.Lost - s.Released)
	s.Waiting = c.counting.Size() + c.plain.acquisitions.Size() + c.fair.acquisitions.Size()
	s.Renewal = c.redis.Renewer.Stats()
	return s
}
