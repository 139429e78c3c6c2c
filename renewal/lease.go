package renewal

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/joined"

	"github.com/cogwheel-go/cogwheel/wheel"
)

type phase uint8

const (
	idle   phase = iota // waiting for its renewal to fall due
	queued              // due, waiting for its batch
	sent                // part of a call in flight
	ended               // over, for whatever reason; nothing leaves this phase
)

// Lease is a lease that a Renewer looks after. Add and Watch return it; it is safe for concurrent use.
//
// Ground rules. mu guards everything below it. While the lease has not ended, exactly one wheel entry is pending or
// its callback is about to run and will arm the next one; it fires at the next renewal or at the deadline,
// whichever is nearer. Every way to end goes through end, once.
type Lease struct {
	renewer *Renewer
	dest    *Destination // nil: watched only
	key, id string
	ttl     time.Duration // that renewals ask for
	as      error
	onLost  func(error)

	prev, next *Lease // guarded by renewer.mu
	nextDue    *Lease // in its destination's stack

	mu        sync.Mutex
	phase     phase
	sentAt    time.Time     // before the request that the term in force was granted to
	lasts     time.Duration // from then
	renewAt   time.Duration // when to renew it next, likewise
	err       error         // while held: the last failure of the backend; when ended: why
	timer     wheel.Timer
	announced *announcement // nil until somebody asks for Done or Context
}

// announcement is what ends with a lease.
type announcement struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// Key is the Spec's Key.
func (l *Lease) Key() string { return l.key }

// ID is the Spec's ID.
func (l *Lease) ID() string { return l.id }

// Done is closed when the lease is over: lost, closed, or cut off by the Renewer's Close. A loss is announced
// before the backend can give the key to another, provided that clocks differ by at most one percent in rate
// and that the process gets to run.
func (l *Lease) Done() <-chan struct{} { return l.base().Done() }

// Err is nil while the lease runs, then says for good how it ended: a *LostError, the reason given to Close, or ErrClosed.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.phase != ended {
		return nil
	}
	return l.err
}

// Valid reports whether the lease may be relied on at this instant. It reads both clocks, so it is right
// immediately after a suspended machine wakes, when Done may lag behind until the next entry fires.
func (l *Lease) Valid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.phase != ended && l.term().left(time.Now()) > 0
}

// Deadline is the instant at which the lease is over unless it is renewed before, margin already taken off.
func (l *Lease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term().deadline()
}

// SentAt is the instant before the request was sent to which the term in force was granted.
func (l *Lease) SentAt() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sentAt
}

// Context returns a context that ends with parent or with the lease, whichever is first; in the second case
// context.Cause is the lease's Err. It costs no goroutine while both last.
func (l *Lease) Context(parent context.Context) context.Context {
	base := l.base()
	ctx, cancel := context.WithCancelCause(parent)
	if base.Err() != nil {
		cancel(context.Cause(base))
		return ctx
	}
	stop := context.AfterFunc(base, func() { cancel(context.Cause(base)) })
	context.AfterFunc(ctx, func() { stop() })
	return ctx
}

// Close ends the lease because its holder gives it back; reason becomes Err, nil stands for ErrReleased. It reports
// whether this call ended it. When Close returns, no call that has yet to start carries the lease and the answer of
// one already in flight is ignored; such a call finds the ID released and does nothing there.
// Close does not talk to the backend.
func (l *Lease) Close(reason error) bool {
	if reason == nil {
		reason = ErrReleased
	}
	l.mu.Lock()
	return l.end(reason)
}

// Prolong tells that the holder has obtained a longer term himself, by a request sent after sentAt for ttl, MinTTL to MaxTTL. It
// reports whether the lease still ran: a term that came too late is none. A term that ends sooner than the one in
// force changes nothing. Renewals go on as before; the backend must not let them shorten the term.
func (l *Lease) Prolong(sentAt time.Time, ttl time.Duration) bool {
	l.mu.Lock()
	now := time.Now()
	switch {
	case l.phase == ended:
		l.mu.Unlock()
		return false
	case l.term().left(now) <= 0:
		l.loseLocked(ErrExpired)
		return false
	}
	defer l.mu.Unlock()
	if ttl >= MinTTL && ttl <= MaxTTL {
		l.prolong(sentAt, ttl)
		l.rearm(now)
	}
	return true
}

// prolong sets the term unless the one in force lasts longer; the caller holds mu.
func (l *Lease) prolong(sentAt time.Time, ttl time.Duration) {
	if (term{sentAt, ttl, l.renewer.tick}).deadline().After(l.term().deadline()) {
		l.renewAt -= sentAt.Sub(l.sentAt)
		l.sentAt, l.lasts = sentAt, ttl
	}
}

// Gone ends the lease as lost because its holder has learned that the backend no longer knows it. It reports whether this call ended it.
func (l *Lease) Gone() bool {
	l.mu.Lock()
	over := l.phase == ended
	l.loseLocked(ErrGone)
	return !over
}

// lose ends the lease without its holder's doing and tells him.
func (l *Lease) lose(cause error) {
	l.mu.Lock()
	l.loseLocked(cause)
}

// loseLocked is lose for a caller that holds mu; it unlocks it.
func (l *Lease) loseLocked(cause error) {
	err := cause
	if !errors.Is(cause, ErrClosed) {
		if l.phase != ended && l.err != nil {
			cause = joined.Errors(cause, l.err)
		}
		err = &LostError{Key: l.key, ID: l.id, Cause: cause, Due: l.term().deadline(), as: l.as}
	}
	if !l.end(err) {
		return
	}
	if !errors.Is(err, ErrClosed) {
		l.renewer.config.logger.LogAttrs(context.Background(), slog.LevelWarn, "lease lost",
			slog.String("key", l.key), slog.String("id", l.id), slog.Any("cause", cause))
	}
	if l.onLost != nil {
		l.onLost(err)
	}
}

// end is called with mu held and unlocks it. It reports whether the lease had not ended before.
func (l *Lease) end(err error) bool {
	if l.phase == ended {
		l.mu.Unlock()
		return false
	}
	l.phase, l.err = ended, err
	announced := l.announced
	l.timer.Stop()
	l.mu.Unlock()

	if announced != nil {
		announced.cancel(err)
	}
	l.renewer.forget(l)
	return true
}

// term is the period confirmed last; the caller holds mu.
func (l *Lease) term() term { return term{l.sentAt, l.lasts, l.renewer.tick} }

// base is made on demand: most leases are never asked for a channel.
func (l *Lease) base() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.announced == nil {
		ctx, cancel := context.WithCancelCause(context.Background())
		l.announced = &announcement{ctx, cancel}
		if l.phase == ended {
			cancel(l.err)
		}
	}
	return l.announced.ctx
}

func (l *Lease) start() error {
	l.mu.Lock()
	now := time.Now()
	if l.term().left(now) <= 0 {
		err := &LostError{Key: l.key, ID: l.id, Cause: ErrExpired, Due: l.term().deadline(), as: l.as}
		l.phase, l.err = ended, err
		l.mu.Unlock()
		return err
	}
	defer l.mu.Unlock()
	if err := l.arm(now); err != nil {
		l.phase, l.err = ended, err
		return err
	}
	return nil
}

// tick is the wheel entry's callback.
func (l *Lease) tick() {
	l.mu.Lock()
	if l.phase == ended {
		l.mu.Unlock()
		return
	}
	now := time.Now()
	if l.term().left(now) <= 0 {
		l.loseLocked(ErrExpired)
		return
	}
	due := l.dest != nil && l.phase == idle && elapsed(l.sentAt, now) >= l.renewAt-window(l.ttl)
	if due {
		l.phase = queued
	}
	if err := l.arm(now); err != nil {
		l.loseLocked(joined.Errors(ErrUnwatched, err))
		return
	}
	l.mu.Unlock()
	if due {
		l.dest.enqueue(l, now)
	}
}

// arm schedules the next entry; the caller holds mu and knows that no entry is pending.
func (l *Lease) arm(now time.Time) (err error) {
	l.timer, err = l.renewer.wheel.AfterFunc(l.nextEntry(now), l.tick)
	return err
}

// rearm moves the pending entry. If it has fired, its callback waits for mu and arms the next one itself.
func (l *Lease) rearm(now time.Time) { l.timer.Reset(l.nextEntry(now)) }

func (l *Lease) nextEntry(now time.Time) time.Duration {
	d := l.term().left(now)
	if l.dest != nil && l.phase == idle {
		d = min(d, slot(now.Sub(l.renewer.origin), l.renewAt-elapsed(l.sentAt, now), window(l.ttl)))
	}
	return max(d, 0)
}

// depart marks a queued lease as part of the call about to start; false means it ended while it was queued.
func (l *Lease) depart() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.phase != queued {
		return false
	}
	l.phase = sent
	return true
}

// settle applies the answer of the call that was sent at sentAt.
func (l *Lease) settle(o Outcome, sentAt time.Time, failure error) {
	l.mu.Lock()
	if l.phase != sent {
		l.mu.Unlock()
		return
	}
	now := time.Now()
	switch {
	case o == Gone:
		l.loseLocked(ErrGone)
		return
	case l.term().left(now) <= 0:
		// The old deadline decides even if the answer says extended and the entry that announces the loss is
		// late: Valid has been false since, and must not become true again.
		l.loseLocked(ErrExpired)
		return
	case o == Extended:
		l.prolong(sentAt, l.ttl)
		l.renewAt = sentAt.Sub(l.sentAt) + nextRenewal(l.ttl, rand.Float64())
		l.err = nil
	default:
		l.err = failure
		l.renewAt = elapsed(l.sentAt, now) + retryAfter(l.ttl, rand.Float64())
	}
	l.phase = idle
	l.rearm(now)
	l.mu.Unlock()
}
