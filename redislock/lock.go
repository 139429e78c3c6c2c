package redislock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/cleanup"
	"github.com/cogwheel-go/cogwheel/internal/contexts"
	"github.com/cogwheel-go/cogwheel/internal/highest"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/signals"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// unlockGrace is how long Unlock waits for the reply after its context has ended.
const unlockGrace = time.Second

// headStart is the advantage of other processes after a lock was handed over within this process.
const headStart = 2 * time.Millisecond

// Lock is one hold of a lock, as Lock and TryLock return it. It is safe for concurrent use. A nil or zero Lock
// is not held: Done is closed, contexts of it have ended, and Err, Extend and Unlock return ErrNotHeld.
type Lock struct {
	request
	lease        lease
	askedAt      time.Duration // when the request that Redis granted was sent, since client.origin
	madeAt       time.Duration // when this Lock was made, since client.origin
	longest      atomic.Int64  // the longest extension asked for; an extended lock is not handed over
	reported     signals.Hold  // whether its begin and end were reported to the Stats and the Hooks
	handoffsLeft int16         // how many hand-overs are left
	ambiguous    bool          // a copy of the request may still be in flight
	handedOver   bool          // from another Lock of this process
}

// Name returns the name of the lock, or "" for a nil or zero Lock. The name of a Lock of a MultiMutex is its
// names, joined by commas.
func (l *Lock) Name() string {
	if !l.valid() {
		return ""
	}
	return l.name()
}

// Done returns a channel that is closed when the lock is no longer held: when it is lost or unlocked, or
// released by Client.Close. It is closed before the lease can end in Redis, even while Redis hangs, provided
// that this process gets to run and that its clock and the server's differ in rate by at most one percent.
//
// A removal of the key while the lease runs is noticed by the next renewal, within a third of the lease. If
// ForceUnlock removes it, it is noticed at once, or as soon as the Client has subscribed. Without renewal, only
// ForceUnlock, Extend and Unlock notice it.
func (l *Lock) Done() <-chan struct{} {
	if !l.valid() {
		done := make(chan struct{})
		close(done)
		return done
	}
	return l.lease.Done()
}

// Err returns nil while the lock is held. Afterwards it always returns the same error, which matches ErrLost,
// ErrClosed, or, after Unlock, ErrNotHeld.
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

// Valid reports whether the lock is held now, as far as this process knows without asking Redis. It is false
// once the lease has run out, even if Done is not closed yet. Call it right before an effect that must not
// overlap with the effects of another holder. Only a check by the resource, as of Token, closes the remaining
// gap.
func (l *Lock) Valid() bool { return l.valid() && l.lease.Valid() }

// Deadline returns the time at which the lock is lost unless it is renewed before. It counts from before the
// last granted request was sent, less the safety margin, so it is earlier than the end of the lease in Redis.
// It does not count WithMaxHold, and does not change after the end of the lock. It is the zero time for a nil
// or zero Lock.
func (l *Lock) Deadline() time.Time {
	if !l.valid() {
		return time.Time{}
	}
	return l.lease.Deadline()
}

// Token returns the fencing token, or 0 without WithFencing: a number that is higher than the tokens of all
// earlier holds of the name. A resource that refuses tokens below the highest it has seen is safe from holders
// that act too late.
func (l *Lock) Token() int64 {
	if !l.valid() {
		return 0
	}
	return l.token
}

// Extend makes the lock last for at least d from now, 1 ms to 365 days. It never shortens the lease, and
// neither do later renewals with the lease of the lock; so Extend lets the lock survive a longer outage of
// Redis. It does not postpone WithMaxHold. For a MultiMutex it must extend every part, for a Quorum a majority.
// Extend blocks for one round trip, at most until ctx ends.
//
// The error matches ErrLost, ErrNotHeld or ErrClosed if the lock is no longer held. A *cogwheel.InvalidError,
// for a d out of range or a nil ctx, changes nothing. After any other error the lock is held as before, and may
// last longer in Redis than Deadline says.
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
	return named("extend", l.name(), l.extend(ctx, d))
}

func (l *Lock) extend(ctx context.Context, d time.Duration) error {
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
	// This precedes the check of the lease: Unlock closes the lease before it checks for an extension.
	highest.Raise(&l.longest, int64(d))
	highest.Raise(&c.longest, int64(d))
	if err := l.Err(); err != nil {
		return err
	}
	r, answered := c.redis.Sender.Do(ctx, calls.Request{Key: l.name(), Build: func() scripts.Call {
		return l.kind().renew.Call(l.kind().keysToRenew(l.name(), l.id), l.id, redisconn.Millis(d))
	}})
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

// Context returns a context that ends with parent or with the lock, whichever ends first. If it is the lock,
// context.Cause returns Err. FromContext returns the lock of it. The context needs no cancel function: it is
// freed with the lock or with parent. Context panics with a *cogwheel.InvalidError if parent is nil.
func (l *Lock) Context(parent context.Context) context.Context {
	if parent == nil {
		panic(argument.Nil("context"))
	}
	if !l.valid() {
		ctx, cancel := context.WithCancelCause(parent)
		cancel(ErrNotHeld)
		return ctx
	}
	return context.WithValue(l.lease.Context(parent), lockOf(l.name()), l)
}

// lockOf is the key under which a context has the Lock of that name.
type lockOf string

// FromContext returns the Lock with the given name whose Do or Context made ctx or an ancestor of ctx; the
// innermost if there are several. So a function deep in the call stack can get the fencing token of the hold.
// The name is the result of Lock.Name. The Lock may be lost or unlocked by now; see Lock.Valid. FromContext returns
// nil if there is no such Lock. A nil Lock is not held.
func FromContext(ctx context.Context, name string) *Lock {
	l, _ := ctx.Value(lockOf(name)).(*Lock)
	return l
}

// Unlock releases the lock and wakes its waiters. Whatever it returns, this Lock is no longer held: Done is
// closed and renewal has ended. The exception is a nil ctx, for which Unlock returns a *cogwheel.InvalidError
// and does nothing. Unlock blocks for one round trip, or for none if it hands the lock over to a waiter of this
// process. If several Locks of an Owner share a hold, the last Unlock releases the key; the others need no
// round trip. With WithMinHold, the name stays locked until the minimum has passed.
//
// Unlock sends the release even if ctx has ended. The error matches ErrUnconfirmed if Redis did not confirm the
// release, or did not confirm it within a second after the end of ctx; the Client then retries in the
// background until the lease ends. If Redis refuses the release for good, Unlock returns the error of Redis,
// and the key stays until its lease ends.
//
// The error matches ErrLost if the lock was lost before, ErrNotHeld if it was unlocked before, and ErrClosed if
// the Client was closed. A lock whose lease ends while Unlock is on its way to Redis does not count as lost.
// Unlock never releases another hold.
func (l *Lock) Unlock(ctx context.Context) error {
	if !l.valid() {
		return ErrNotHeld
	}
	if ctx == nil {
		return argument.Nil("context")
	}
	return named("unlock", l.name(), l.unlock(ctx))
}

func (l *Lock) unlock(ctx context.Context) error {
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
		if errors.Is(err, renewal.ErrUnwatched) { // nothing else releases it before Close
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

// release frees the key of a lock that is no longer held. deadline is the Deadline that the lock had.
func (l *Lock) release(ctx context.Context, deadline time.Time) error {
	c := l.client()
	began := c.wheel.Now()
	r, answered := l.sendRelease(ctx)
	if !answered {
		return unconfirmed(l.name(), contexts.Error(ctx))
	}
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
	switch {
	case released:
	case began.Before(deadline) && (r.Ambiguous || !c.wheel.Now().Before(deadline)):
		// A first copy of the call, whose reply was lost, may have released it, or the lease ended meanwhile.
	default:
		return lostBefore("unlock", l.name(), errGone)
	}
	return nil
}

// sendRelease sends the release and waits for the reply until unlockGrace after the end of ctx. If there is
// none by then, the release goes on in the background.
func (l *Lock) sendRelease(ctx context.Context) (r redisconn.Reply, answered bool) {
	c := l.client()
	p := c.redis.Sender.Start(ctx, calls.Request{
		Key:   l.name(),
		Must:  true,
		Build: func() scripts.Call { return l.kind().release(&l.request) },
		Late: func(r redisconn.Reply) {
			l.wakeNext()
			if r.Err() != nil || l.ambiguous {
				l.releaseLater(0, l.ambiguous)
			}
		},
	})
	if !p.Wait(ctx.Done()) {
		over := make(chan struct{}) // closed after unlockGrace, or when the wheel stops
		timer, err := wheelentry.AfterFunc(c.wheel, unlockGrace, func(error) { close(over) })
		if err != nil {
			close(over)
		}
		if !p.Wait(over) && !p.Leave() {
			return r, false
		}
		timer.Stop()
	}
	l.wakeNext()
	return p.Reply(), true
}

// wakeNext wakes the waiters of this process that found the lock taken during its release. After a series of
// hand-overs, other processes go first: they learn of the release by its message.
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

// kick makes the waiters of this process ask for the lock. Waiters for a writer's lock may be readers.
func (l *Lock) kick() {
	key := l.mutex.queueKey(nil)
	l.client().queues.Kick(key)
	if key.kind == writing {
		key.kind = reading
		l.client().queues.Kick(key)
	}
}

// onLost is called once, when the lease ends without Unlock.
func (l *Lock) onLost(err error) {
	c := l.client()
	if c.gate.Enter() { // else Close reports the end
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
	// A renewal that was given up may still execute and keep the key for another lease without a holder.
	// Release the key, but not before the last promised deadline and some time for the holder to stop.
	l.releaseLater(lost.Due.Add(l.ttl()/8).Sub(c.wheel.Now()), false)
}

// maxHoldReached ends a lock whose WithMaxHold has passed.
func (l *Lock) maxHoldReached() {
	if l.expel(fmt.Errorf("%w: %v", ErrMaxHold, l.mutex.config.maxHold)) {
		l.client().logger.LogAttrs(context.Background(), slog.LevelWarn,
			"redislock: lock held for too long, released", slog.String("name", l.name()))
	}
}

// expel ends a lock against the will of its holder, and reports whether it was held. The key is freed a little
// later, because the holder may need time to stop.
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

// underlying returns the lock in Redis behind l: l itself, or the lock of its Owner.
func (l *Lock) underlying() *Lock {
	if e, ok := l.lease.(*entry); ok {
		return e.hold.lock
	}
	return l
}

// entries returns the number of Locks on the hold that are not unlocked yet: 1 without an Owner.
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
