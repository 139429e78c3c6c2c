package redislock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/cleanup"
	"github.com/cogwheel-go/cogwheel/internal/contexts"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/highest"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/sender"
	"github.com/cogwheel-go/cogwheel/internal/signals"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// unlockGrace is how long Unlock waits for Redis after its context has ended.
const unlockGrace = time.Second

// headStart is the advantage of other processes after this one has handed a lock over among its own callers.
const headStart = 2 * time.Millisecond

// Lock is one hold of a lock. Lock and TryLock return it; it is safe for concurrent use. Its methods are
// harmless on a nil or zero Lock, which counts as unlocked: Err is ErrNotHeld, and Done is closed.
type Lock struct {
	request
	lease        lease
	askedAt      time.Duration // when the request that Redis granted was sent, since client.origin
	madeAt       time.Duration // when this Lock was made, likewise
	longest      atomic.Int64  // the longest extension asked for; a lock with one is not handed over
	reported     signals.Hold  // to the Stats and the Hooks
	handoffsLeft int16         // how often it may be handed over
	ambiguous    bool          // a copy of the request may still be in flight
	handedOver   bool          // from another Lock of this process
}

// Name returns the lock's name.
func (l *Lock) Name() string {
	if !l.valid() {
		return ""
	}
	return l.name()
}

// Done is closed when the lock is no longer held: lost, unlocked, or released by the Client's Close. A loss is
// announced before the lease can end in Redis, even while Redis hangs, as long as this process gets to run and its
// clock differs from the server's by at most one percent in rate. A key that is removed while the lease runs is
// noticed within a third of the lease, and at once if ForceUnlock removes it.
func (l *Lock) Done() <-chan struct{} {
	if !l.valid() {
		done := make(chan struct{})
		close(done)
		return done
	}
	return l.lease.Done()
}

// Err is nil while the lock is held. Then it is, for good, an error matching ErrLost, ErrNotHeld after
// Unlock, or ErrClosed.
func (l *Lock) Err() error {
	if !l.valid() {
		return ErrNotHeld
	}
	err := l.lease.Err()
	if errors.Is(err, renewal.ErrClosed) {
		return ErrClosed
	}
	return err
}

// Valid reports whether the lock is held at this instant, as far as this process can know. It does not talk
// to Redis. Call it right before an effect that must not overlap with another holder's. Only a check where
// the effect takes place closes the gap.
func (l *Lock) Valid() bool { return l.valid() && l.lease.Valid() }

// Deadline is the instant at which the lock is lost unless it is renewed before, counted from before the last
// request was sent and with the safety margin taken off. It leaves WithMaxHold out, and does not change after
// the end of the lock. It is zero for a nil or zero Lock.
func (l *Lock) Deadline() time.Time {
	if !l.valid() {
		return time.Time{}
	}
	return l.lease.Deadline()
}

// Token returns the fencing token, 0 without WithFencing: a number that is higher than that of every earlier
// hold of the name. A resource that remembers the highest token it has seen, and refuses lower ones, is safe
// from holders that act too late.
func (l *Lock) Token() int64 {
	if !l.valid() {
		return 0
	}
	return l.token
}

// Extend makes the lock last for d from now, 1 ms to 365 days, if it would end sooner. It never makes the
// lock end sooner. A lock with renewal is still renewed for its lease; Extend lets it survive a longer outage
// of Redis. It does not postpone WithMaxHold. It succeeds for a MultiMutex if it extends every part, for a
// Quorum if it extends a majority. It blocks for one round trip, at most until ctx ends.
//
// The error matches ErrLost, ErrNotHeld or ErrClosed if the lock is not held any more. After any other error
// the lock is held as before and may last longer in Redis than Deadline tells; a *cogwheel.InvalidError, for
// a d out of range or a nil ctx, changes nothing.
func (l *Lock) Extend(ctx context.Context, d time.Duration) error {
	switch {
	case !l.valid():
		return ErrNotHeld
	case ctx == nil:
		return argument.Nil("context")
	case d < renewal.MinTTL || d > renewal.MaxTTL:
		return argument.Error("Extend", d, "must be 1ms to 8760h")
	case ctx.Err() != nil:
		return operationError("extend", l.name(), contexts.Error(ctx))
	}
	switch lease := l.lease.(type) {
	case *composite:
		return lease.extend(ctx, d)
	case *entry:
		if err := l.Err(); err != nil {
			return err
		}
		return lease.hold.lock.Extend(ctx, d)
	}
	c, lease := l.client(), l.lease.(*renewal.Lease)
	if !c.gate.Enter() {
		return ErrClosed
	}
	defer c.gate.Leave()
	// Before the lease is looked at: Unlock closes it before it looks whether the lock was extended.
	highest.Raise(&l.longest, int64(d))
	if err := l.Err(); err != nil {
		return err
	}
	what := l.kind().renew.Call(l.kind().keysToRenew(l.name(), l.id), l.id, redisconn.Millis(d))
	r, answered := gate.Await(&c.gate, ctx.Done(),
		func() redisconn.Reply { return c.sender.Run(what, ctx.Done()) }, func(redisconn.Reply) {})
	if !answered {
		return operationError("extend", l.name(), contexts.Error(ctx))
	}
	held, err := r.Flags(1)
	switch {
	case err != nil:
		return operationError("extend", l.name(), err)
	case !held[0]:
		lease.Gone()
	default:
		lease.Prolong(r.SentAt, d)
	}
	return l.Err()
}

// Context returns a context that ends with parent or with the lock; in the second case its context.Cause is
// the lock's Err. It needs no goroutine and no cancel function: it is released with the lock or its parent.
// It panics if parent is nil.
func (l *Lock) Context(parent context.Context) context.Context {
	if !l.valid() {
		ctx, cancel := context.WithCancelCause(parent)
		cancel(ErrNotHeld)
		return ctx
	}
	return l.lease.Context(parent)
}

// Unlock releases the lock and wakes its waiters. Whatever it returns, this Lock is no longer held: Done is
// closed, and no renewal is sent for it. Only a nil ctx does nothing, with a *cogwheel.InvalidError. Of
// several Locks of an Owner on one hold, the last Unlock releases the key; the others need no round trip.
// Unlock blocks for one round trip, or for none if it hands the lock over to a waiter of this process.
//
// The release does not depend on ctx: it is sent even if ctx has ended, and Unlock then waits for the answer
// for up to a second. If there is none, or Redis fails, the error matches ErrUnconfirmed, and the release is
// retried in the background until it succeeds or the lease is over. If Redis refuses the release for good,
// Unlock returns Redis's error, and the key stays until its lease ends.
//
// The error matches ErrLost if the lock was lost before, ErrNotHeld if it was unlocked before, and ErrClosed
// if the Client was closed. In none of these cases is another hold touched. A lock that was held when Unlock
// was called is not lost, however long Redis takes to answer.
func (l *Lock) Unlock(ctx context.Context) error {
	if !l.valid() {
		return ErrNotHeld
	}
	if ctx == nil {
		return argument.Nil("context")
	}
	switch lease := l.lease.(type) {
	case *composite:
		return lease.unlock(ctx)
	case *entry:
		return lease.unlock(ctx)
	}
	c, deadline := l.client(), l.lease.Deadline()
	if !c.gate.Enter() { // Close releases it
		if err := l.Err(); err != nil {
			return err
		}
		return ErrClosed
	}
	defer c.gate.Leave()
	if !l.lease.Close(ErrNotHeld) {
		err := l.Err()
		if errors.Is(err, renewal.ErrUnwatched) { // then nothing else releases it before Close
			_ = l.release(ctx, deadline)
		}
		return err
	}
	c.drop(l)
	if l.handOver() {
		c.monitor.ended(l, nil)
		return nil
	}
	err := l.release(ctx, deadline)
	c.monitor.ended(l, err)
	return err
}

// release frees the key of a lock that is not held any more and whose deadline was given.
func (l *Lock) release(ctx context.Context, deadline time.Time) error {
	c := l.client()
	began := c.wheel.Now()
	r, answered := l.sendRelease(ctx)
	if !answered {
		return unconfirmed(l.name(), contexts.Error(ctx))
	}
	gone := r.Ambiguous // then an unanswered first copy may have released it
	released, err := r.Flag()
	switch {
	case redisconn.WrongKind(err):
		return lostBefore("unlock", l.name(), err)
	case err != nil:
		l.releaseLater(0, l.ambiguous)
		if redisconn.Permanent(err) {
			return operationError("unlock", l.name(), err)
		}
		return unconfirmed(l.name(), err)
	}
	if l.ambiguous {
		l.releaseLater(cleanup.LateCopy, true)
	}
	// If the answer came after the deadline, the lease has ended meanwhile, and not before.
	if !released && !gone && (!began.Before(deadline) || c.wheel.Now().Before(deadline)) {
		return lostBefore("unlock", l.name(), errGone)
	}
	return nil
}

// sendRelease sends the release and returns the reply, if it comes while ctx lasts or unlockGrace after that.
// Otherwise the release goes on in the background.
func (l *Lock) sendRelease(ctx context.Context) (r redisconn.Reply, answered bool) {
	c := l.client()
	what := func() scripts.Call { return l.kind().release(&l.request) }
	if ctx.Done() == nil {
		r = c.sender.Run(what(), nil)
		l.wakeNext()
		return r, true
	}
	var early sender.Early
	over := make(chan struct{}) // closed unlockGrace after the end of ctx, or with the wheel
	return gate.Call[redisconn.Reply]{
		Begin: func(ended <-chan struct{}) bool { return early.Send(c.sender, what(), ended) },
		Do: func() redisconn.Reply {
			r := early.Run(c.sender, what, over)
			l.wakeNext()
			return r
		},
		Late: func(r redisconn.Reply) {
			if r.Err() != nil || l.ambiguous {
				l.releaseLater(0, l.ambiguous)
			}
		},
		Longer: func() <-chan struct{} {
			if _, err := wheelentry.AfterFunc(c.wheel, unlockGrace, func(error) { close(over) }); err != nil {
				close(over)
			}
			return over
		},
	}.Await(&c.gate, ctx.Done())
}

// wakeNext wakes the waiters of this process that found the lock taken while it was being released. After a
// row of hand-overs, other processes, which learn of the release by the message, go first.
func (l *Lock) wakeNext() {
	if !l.kind().exclusive {
		return
	}
	if l.handedOver {
		if _, err := wheelentry.AfterFunc(l.client().wheel, headStart, func(error) { l.kick() }); err == nil {
			return
		}
	}
	l.kick()
}

// kick lets the waiters of this process ask for the lock.
func (l *Lock) kick() { l.client().queues.Kick(l.mutex.queueKey(nil)) }

// onLost is called once if the lease ends without Unlock.
func (l *Lock) onLost(err error) {
	c := l.client()
	if c.gate.Enter() { // otherwise Close reports it
		defer c.gate.Leave()
		c.monitor.ended(l, err)
		c.drop(l)
	}
	var lost *renewal.LostError
	if !errors.As(err, &lost) {
		return
	}
	if l.kind().exclusive {
		l.kick()
	}
	if errors.Is(err, renewal.ErrGone) {
		return
	}
	// A renewal that was given up may still have been executed and keep the key for another lease that no
	// holder uses. Release it, but not before the time for which it was last promised: its holder may need
	// that time to stop.
	l.releaseLater(lost.Due.Add(l.ttl()/8).Sub(c.wheel.Now()), false)
}

// maxHoldReached ends a lock that has been held for as long as it may.
func (l *Lock) maxHoldReached() {
	if l.expel(fmt.Errorf("%w: %v", ErrMaxHold, l.mutex.config.maxHold)) {
		l.client().logger.LogAttrs(context.Background(), slog.LevelWarn,
			"redislock: lock held for too long, released", slog.String("name", l.name()))
	}
}

// expel ends a lock against the will of its holder, and reports whether it was held. The key goes a little later:
// the holder may need time to stop.
func (l *Lock) expel(cause error) bool {
	c := l.client()
	if !c.gate.Enter() {
		return false // Close releases it
	}
	defer c.gate.Leave()
	err := fmt.Errorf("%w: %s: %w", ErrLost, scripts.Quote(l.name()), cause)
	if !l.lease.Close(err) {
		return false
	}
	c.drop(l)
	c.monitor.ended(l, err)
	l.releaseLater(l.ttl()/8, false)
	return true
}

func (l *Lock) valid() bool { return l != nil && l.lease != nil }

// underlying returns the lock that l stands for: l itself, or that of its Owner.
func (l *Lock) underlying() *Lock {
	if e, ok := l.lease.(*entry); ok {
		return e.hold.lock
	}
	return l
}

// entries returns how many Locks on the hold are still to be unlocked: 1 without an Owner.
func (l *Lock) entries() int {
	if e, ok := l.lease.(*entry); ok {
		return e.hold.entries()
	}
	return 1
}

// owner returns the Owner of the lock, or nil.
func (l *Lock) owner() *Owner {
	if e, ok := l.lease.(*entry); ok {
		return e.hold.owner
	}
	return nil
}
