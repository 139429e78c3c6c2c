package renewal

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/clock"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/usercode"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Renewer keeps leases alive and tells their holders when they are lost. Make one with New. It is safe for
// concurrent use.
type Renewer struct {
	wheel  *wheel.Wheel
	tick   time.Duration // of the wheel
	config config
	ctx    context.Context // parent of every call; cancelled by Close
	cancel context.CancelFunc
	clock  *clock.Clock
	origin time.Time // slots count from here
	counts counts

	watched Destination // of the leases that Watch tracks: it has no backend

	gate gate.Gate // entered by the goroutines that talk to a backend, which are its Workers

	// The mutexes of a Renewer, its Destinations and its Leases are never held together, and none is held while
	// a backend or an OnLost runs.
	mu     sync.Mutex
	leases Lease // sentinel of a circular list; no lease is added after Close
	count  int
}

// New returns a Renewer whose leases are entries on w. It starts no goroutine. The caller must keep w running
// until Close has returned: when w is stopped, every lease is lost at once, with the cause ErrUnwatched. New
// returns a *cogwheel.InvalidError if w is nil or an option is invalid.
func New(w *wheel.Wheel, opts ...Option) (*Renewer, error) {
	if w == nil {
		return nil, argument.Nil("wheel")
	}
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	r := &Renewer{wheel: w, tick: w.TickDuration(), config: c, origin: w.Now()}
	r.clock = clock.New(clock.Reader(w.Now))
	r.gate.Workers = gate.NewWorkers(w)
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.watched.renewer = r
	r.leases.prev, r.leases.next = &r.leases, &r.leases
	return r, nil
}

// Spec describes a lease that its holder has just obtained.
type Spec struct {
	// The Renewer only passes Key and ID to the backend: each may be empty, and two leases with the same ones are
	// renewed apart.
	Key string // the resource
	ID  string // the holder; must be unique per acquisition, so that a late renewal never affects a successor

	// TTL is how long the backend keeps the lease without a renewal: Renewer.MinTTL() to MaxTTL.
	TTL time.Duration

	// SentAt is the instant before the request that obtained the lease was sent, by Now of the Renewer's wheel.
	// The zero Time is refused. With a later instant, a loss is noticed too late.
	SentAt time.Time

	// Lost, if set, is an error that a loss matches, in addition to ErrLost.
	Lost error

	// OnLost, if set, is called once if the lease ends other than by Lease.Close, after Done is closed: with a
	// *LostError, or with ErrClosed by Renewer.Close, which Stats.Lost and Hooks.Lost do not count as a loss. It runs
	// where wheel callbacks or backend calls run, in Renewer.Close, or in the call of MarkLost or Prolong that ended
	// the lease. It should return soon. A panic is logged.
	OnLost func(error)
}

// MinTTL returns the shortest TTL that the Renewer accepts: ten ticks of its wheel, and at least the constant
// MinTTL. The end of a shorter lease could not be announced in time.
func (r *Renewer) MinTTL() time.Duration { return max(MinTTL, minTicks*r.tick) }

func (r *Renewer) validate(s *Spec) error {
	if s.TTL < r.MinTTL() || s.TTL > MaxTTL {
		reason := fmt.Sprintf("must be %v to 8760h, and at least ten ticks of the wheel", r.MinTTL())
		return argument.Error("TTL", s.TTL, reason)
	}
	if s.SentAt.IsZero() {
		return argument.Error("SentAt", s.SentAt, "must be the instant before the request was sent")
	}
	return nil
}

// Destination returns a new destination: a backend with a separate queue and separate calls, so that a backend
// that hangs delays no other. Use one per node and kind of lease, and keep it; it costs nothing while no lease
// is due. It returns a *cogwheel.InvalidError if b is nil.
func (r *Renewer) Destination(b Backend) (*Destination, error) {
	if b == nil {
		return nil, argument.Nil("backend")
	}
	return &Destination{renewer: r, backend: b}, nil
}

// Watch tracks the deadline of a lease without renewing it. It does not block. Its errors are those of
// Destination.Add.
func (r *Renewer) Watch(s Spec) (*Lease, error) { return r.watched.Add(s) }

// Len returns the number of leases that have not ended.
func (r *Renewer) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

// Close ends every lease with ErrClosed and calls its OnLost, sends no further renewal, cancels the calls in
// flight, and blocks until they and their hooks have returned, or until ctx ends. Then it returns ctx's error,
// and those calls end on their own. Close does not give leases back; their holders must. Further calls of Close
// wait in the same way. For a nil ctx Close does nothing and returns a *cogwheel.InvalidError.
func (r *Renewer) Close(ctx context.Context) error {
	if ctx == nil {
		return argument.Nil("context")
	}
	r.gate.Close()
	r.cancel()
	r.gate.Workers.Close()
	for _, l := range r.all() {
		l.lose(ErrClosed)
	}
	return r.gate.Wait(ctx)
}

func (r *Renewer) add(d *Destination, s Spec) (*Lease, error) {
	if err := r.validate(&s); err != nil {
		return nil, err
	}
	l := &Lease{
		dest: d, key: s.Key, id: s.ID, ttl: s.TTL, lossError: s.Lost, onLost: s.OnLost,
		sentAt: s.SentAt, lasts: s.TTL,
	}
	if l.renewed() {
		l.renewAt = firstRenewal(s.TTL, rand.Float64())
	}
	if !r.enlist(l) {
		return nil, ErrClosed
	}
	if err := l.start(); err != nil {
		r.forget(l)
		return nil, err
	}
	return l, nil
}

func (r *Renewer) enlist(l *Lease) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gate.Closed() {
		return false
	}
	l.prev, l.next = r.leases.prev, &r.leases
	l.prev.next, l.next.prev = l, l
	r.count++
	return true
}

// all returns the leases that have not ended.
func (r *Renewer) all() []*Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*Lease, 0, r.count)
	for l := r.leases.next; l != &r.leases; l = l.next {
		all = append(all, l)
	}
	return all
}

// now reads the clock. If the machine was suspended or the wall clock was set, it makes all leases be checked
// at once.
func (r *Renewer) now() time.Time {
	now := r.wheel.Now()
	if r.clock.Notice(now) {
		r.gate.Workers.Go(r.recheck)
	}
	return now
}

// recheck makes every lease that a suspend or a step of the wall clock has made due be renewed or ended at
// once.
func (r *Renewer) recheck() {
	if !r.gate.Enter() {
		return
	}
	defer r.gate.Leave()
	for _, l := range r.all() {
		l.recheck()
	}
}

// call calls a hook apart.
func (r *Renewer) call(hook func(Event), e Event) { usercode.Apart(func() { hook(e) }, r.panicked) }

func (r *Renewer) panicked(f *usercode.Failure) {
	r.config.logger.LogAttrs(context.Background(), slog.LevelError, "renewal: a hook or OnLost panicked",
		slog.Any("panic", f.Value), slog.String("stack", f.Stack))
}

func (r *Renewer) forget(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.next == nil {
		return
	}
	l.prev.next, l.next.prev = l.next, l.prev
	l.prev, l.next = nil, nil
	r.count--
}
