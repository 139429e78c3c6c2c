package renewal

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/usercode"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

type phase uint8

const (
	idle   phase = iota // waiting for its next renewal
	queued              // due, waiting for its batch
	sent                // part of a call in flight
	ended               // ended for any reason; the last phase
)

// Lease is a lease in the care of a Renewer, as Add and Watch return it. It is safe for concurrent use.
type Lease struct {
	dest      *Destination // of a lease that is only watched: Renewer.watched
	key, id   string
	ttl       time.Duration // the TTL that renewals ask for
	lossError error         // of the Spec
	onLost    func(error)

	prev, next *Lease // guarded by the mutex of the Renewer
	nextDue    *Lease // in the stack of its destination

	// mu guards everything below. While the lease has not ended, exactly one wheel entry is pending, or its
	// callback is about to run and will arm the next one; it fires at the next renewal or at the deadline,
	// whichever is nearer.
	mu      sync.Mutex
	phase   phase
	sentAt  time.Time     // the instant before the request that obtained the present term was sent
	lasts   time.Duration // length of the present term from sentAt
	renewAt time.Duration // next renewal, counted from sentAt
	failure error         // the last failure of the backend, unless a renewal has succeeded since
	timer   wheel.Timer
	end     conventions.End // comes with the last phase; it needs no lock
}

func (l *Lease) renewer() *Renewer { return l.dest.renewer }

// renewed reports whether the lease is renewed, not only watched.
func (l *Lease) renewed() bool { return l.dest.backend != nil }

// Key returns the Key of the Spec.
func (l *Lease) Key() string { return l.key }

// ID returns the ID of the Spec.
func (l *Lease) ID() string { return l.id }

// Done returns a channel that is closed when the lease ends: when it is lost or closed, or by Renewer.Close. A
// loss is announced before the lease can end at the backend, provided that the process gets to run and that its
// clock and the backend's differ in rate by at most one percent. A lease that the backend ends early is lost at
// the next renewal.
func (l *Lease) Done() <-chan struct{} { return l.end.Done() }

// Err returns nil while the lease is held. Afterwards it always returns the same error: a *LostError, the
// reason given to Close, or ErrClosed.
func (l *Lease) Err() error { return l.end.Err() }

// Valid reports whether the holder may rely on the lease now. It counts suspend, so it is right immediately
// after a suspended machine wakes, even if Done is not closed yet.
func (l *Lease) Valid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.phase != ended && l.leftLocked(l.renewer().now()) > 0
}

// Deadline returns the time at which the lease is lost unless it is renewed before, with the margin already
// taken off. It does not change after the end of the lease.
func (l *Lease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadlineLocked()
}

// SentAt returns the instant before the request that obtained the present term was sent.
func (l *Lease) SentAt() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sentAt
}

// Context returns a context that ends with parent or with the lease, whichever ends first. If it is the lease,
// its Err is context.Canceled and context.Cause returns the Err of the lease. It needs no goroutine. Context
// panics with a *cogwheel.InvalidError if parent is nil.
func (l *Lease) Context(parent context.Context) context.Context {
	if parent == nil {
		panic(argument.Nil("context"))
	}
	return l.end.Context(parent)
}

// Close ends the lease because its holder gives it back. reason becomes its Err; nil stands for ErrReleased.
// Close reports whether this call ended the lease. After Close no further call carries the lease, and the reply
// of a call in flight is ignored; that call may still extend the lease at the backend until the holder has
// given it back there, under its ID. Close does not block and does not talk to the backend.
func (l *Lease) Close(reason error) bool {
	if reason == nil {
		reason = ErrReleased
	}
	l.mu.Lock()
	closed := l.endLocked(reason)
	l.mu.Unlock()
	if closed {
		l.renewer().forget(l)
	}
	return closed
}

// Prolong sends nothing: it records that the holder has obtained a longer term, by a request sent after sentAt for
// ttl. It returns false if the lease had ended, or if its deadline had passed; in the second case the lease is now
// lost. Otherwise it returns true, even if nothing changes: because the new term ends earlier than the present one,
// or ttl is not between the constants MinTTL and MaxTTL. Renewals go on as before and do not shorten the term; the
// backend must not shorten it either. Prolong does not block.
func (l *Lease) Prolong(sentAt time.Time, ttl time.Duration) bool {
	l.mu.Lock()
	now := l.renewer().now()
	var loss error
	held := l.phase != ended && l.leftLocked(now) > 0
	switch {
	case !held:
		loss = l.loseLocked(ErrExpired)
	case ttl >= MinTTL && ttl <= MaxTTL:
		l.prolongLocked(sentAt, ttl)
		l.hurryAfterStepLocked(sentAt, now)
		l.rearmLocked(now)
	}
	l.mu.Unlock()
	l.announceLoss(loss)
	return held
}

// MarkLost ends the lease as lost, with the cause ErrGone, because its holder has learned that the backend no
// longer knows it. It reports whether this call ended the lease.
func (l *Lease) MarkLost() bool { return l.lose(ErrGone) }

// lose ends the lease against its holder's will, and announces the loss. It reports whether this call ended the
// lease.
func (l *Lease) lose(cause error) bool {
	l.mu.Lock()
	loss := l.loseLocked(cause)
	l.mu.Unlock()
	l.announceLoss(loss)
	return loss != nil
}

// loseLocked ends the lease and returns the loss, or nil if the lease had ended before. The caller passes it to
// announceLoss after mu is unlocked.
func (l *Lease) loseLocked(cause error) (loss error) {
	if l.phase == ended {
		return nil
	}
	loss = cause
	if !errors.Is(cause, ErrClosed) {
		loss = l.lostErrorLocked(conventions.Join(cause, l.failure))
	}
	l.endLocked(loss)
	return loss
}

func (l *Lease) lostErrorLocked(cause error) *LostError {
	return &LostError{Key: l.key, ID: l.id, Cause: cause, Due: l.deadlineLocked(), lossError: l.lossError}
}

// endLocked ends the lease, and reports whether this call did. If so, the caller calls forget after mu is unlocked.
func (l *Lease) endLocked(err error) bool {
	if l.phase == ended {
		return false
	}
	l.phase = ended
	l.timer.Stop()
	return l.end.Close(err)
}

func (l *Lease) announceLoss(loss error) {
	if loss == nil {
		return
	}
	l.renewer().forget(l)
	if lost, ok := errors.AsType[*LostError](loss); ok {
		if l.renewed() || !errors.Is(lost, ErrExpired) { // a lease without renewal expires as planned
			l.renewer().config.logger.LogAttrs(context.Background(), slog.LevelWarn, "renewal: lease lost",
				slog.String("key", l.key), slog.String("id", readable(l.id)), slog.Any("error", lost))
		}
		l.renewer().counts.lost()
		if hook := l.renewer().config.hooks.Lost; hook != nil {
			l.renewer().call(hook, Event{Key: l.key, ID: l.id, Leases: 1, Err: loss})
		}
	}
	if l.onLost != nil {
		usercode.Here(func() { l.onLost(loss) }, l.renewer().panicked)
	}
}

// lifetimeLocked returns how long after sentAt the holder may rely on the lease.
func (l *Lease) lifetimeLocked() time.Duration { return lifetime(l.lasts, l.renewer().tick) }

func (l *Lease) deadlineLocked() time.Time { return l.sentAt.Add(l.lifetimeLocked()) }

// ageLocked returns the time from sentAt to now, including suspends.
func (l *Lease) ageLocked(now time.Time) time.Duration { return l.renewer().clock.Since(l.sentAt, now) }

// leftLocked returns how long the holder may still rely on the lease; if it is not positive, the lease is over.
func (l *Lease) leftLocked(now time.Time) time.Duration { return l.lifetimeLocked() - l.ageLocked(now) }

// prolongLocked sets the term unless the present one lasts longer.
func (l *Lease) prolongLocked(sentAt time.Time, ttl time.Duration) {
	later := l.ageLocked(sentAt)
	if later+lifetime(ttl, l.renewer().tick) > l.lifetimeLocked() {
		l.renewAt -= later
		l.sentAt, l.lasts = sentAt, ttl
	}
}

func (l *Lease) start() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.renewer().now()
	var err error
	if l.leftLocked(now) <= 0 {
		err = l.lostErrorLocked(ErrExpired)
	} else {
		l.hurryAfterStepLocked(l.sentAt, now)
		err = l.armLocked(now)
	}
	if err != nil {
		l.endLocked(err)
	}
	return err
}

// tick is the callback of the wheel entry. After the stop of the wheel nothing could announce the end of the lease.
func (l *Lease) tick(stopped error) {
	if stopped != nil {
		l.lose(conventions.Join(ErrUnwatched, stopped))
		return
	}
	l.mu.Lock()
	now := l.renewer().now()
	due, loss := l.tickLocked(now)
	l.mu.Unlock()
	l.announceLoss(loss)
	if due {
		l.dest.enqueue(l, now)
	}
}

// tickLocked reports whether the lease must be renewed now, or returns the loss if it is lost.
func (l *Lease) tickLocked(now time.Time) (due bool, loss error) {
	if l.phase == ended {
		return false, nil
	}
	if l.leftLocked(now) <= 0 {
		return false, l.loseLocked(ErrExpired)
	}
	due = l.renewed() && l.phase == idle && l.ageLocked(now) >= l.renewAt-window(l.ttl)
	if due {
		l.phase = queued
	}
	if err := l.armLocked(now); err != nil {
		return false, l.loseLocked(conventions.Join(ErrUnwatched, err))
	}
	return due, nil
}

// armLocked schedules the next entry; none may be pending.
func (l *Lease) armLocked(now time.Time) (err error) {
	l.timer, err = wheelentry.AfterFunc(l.renewer().wheel, l.nextEntryLocked(now), l.tick)
	return err
}

// rearmLocked moves the pending entry. If that has fired, its callback waits for mu and arms the next entry.
func (l *Lease) rearmLocked(now time.Time) { l.timer.Reschedule(l.nextEntryLocked(now)) }

func (l *Lease) nextEntryLocked(now time.Time) time.Duration {
	d := l.leftLocked(now)
	if l.renewed() && l.phase == idle {
		d = min(d, slot(now.Sub(l.renewer().origin), l.renewAt-l.ageLocked(now), window(l.ttl)))
	}
	return max(d, 0)
}

// hurryAfterStepLocked makes an idle lease due at once if the wall clock alone was set ahead, by more than the
// margin of the lease, after its last answered request was sent. That may be a correction after a pause of the
// virtual machine that no other clock has counted: only the answer to a renewal tells whether the lease still
// exists. It is called once for each answer and for each step, so a renewal that fails is retried at the usual pace.
func (l *Lease) hurryAfterStepLocked(sentAt, now time.Time) {
	if l.phase == idle && l.renewer().clock.Ahead(sentAt, now) > margin(l.lasts, l.renewer().tick) {
		l.renewAt = 0
	}
}

// recheck moves the pending entry after the machine was suspended or the wall clock set.
func (l *Lease) recheck() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.phase == ended {
		return
	}
	now := l.renewer().now()
	l.hurryAfterStepLocked(l.sentAt, now)
	l.rearmLocked(now)
}

// joinCall marks a queued lease as part of the call about to start. It returns false if the lease has ended
// meanwhile.
func (l *Lease) joinCall() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.phase != queued {
		return false
	}
	l.phase = sent
	return true
}

// finishCall applies the outcome of the call that was sent at sentAt, and reports whether it extended the
// lease.
func (l *Lease) finishCall(o Outcome, sentAt time.Time, failure error) (renewed bool) {
	l.mu.Lock()
	renewed, loss := l.finishCallLocked(o, sentAt, failure)
	l.mu.Unlock()
	if loss != nil {
		usercode.Apart(func() { l.announceLoss(loss) }, l.renewer().panicked)
	}
	return renewed
}

func (l *Lease) finishCallLocked(o Outcome, sentAt time.Time, failure error) (renewed bool, loss error) {
	now := l.renewer().now()
	switch {
	case l.phase != sent:
		return false, nil
	case o == OutcomeGone:
		return false, l.loseLocked(ErrGone)
	case l.leftLocked(now) <= 0:
		// The old deadline decides, even if the answer is Extended and the entry that announces the loss is
		// late: Valid has returned false since, and must not return true again.
		return false, l.loseLocked(ErrExpired)
	case o == OutcomeExtended:
		l.prolongLocked(sentAt, l.ttl)
		l.renewAt = l.ageLocked(sentAt) + nextRenewal(l.ttl, rand.Float64())
		l.failure = nil
		renewed = true
	default:
		l.failure = failure
		l.renewAt = l.ageLocked(now) + retryAfter(l.ttl, rand.Float64())
	}
	l.phase = idle
	if renewed {
		l.hurryAfterStepLocked(sentAt, now)
	}
	l.rearmLocked(now)
	return renewed, nil
}
