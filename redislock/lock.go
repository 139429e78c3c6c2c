package redislock

import (
	"context"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/hold"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// Lock is the result of a call of Lock or TryLock: a hold, or with an Owner a share of a hold. It is safe for
// concurrent use. A nil or zero Lock is not held: Done is closed, contexts of it have ended, and Err, Extend and Unlock
// return ErrNotHeld.
type Lock struct{ body body }

// body is what a Lock stands for: a lock in Redis (*held), one of the entries of an Owner on that (*entry), or several
// locks that count as one (*composite).
type body interface {
	conventions.Hold
	handle() *Lock // for its caller
	known() *identity
	extend(ctx context.Context, d time.Duration) error
	unlock(ctx context.Context) error
}

// part is a body that may be one of several parts of a composite.
type part interface {
	body

	// abandon releases, in the background, a lock whose caller does not get it.
	abandon()

	// endPart ends a part of a composite that has ended for a reason. It is freed a little later, because its holder
	// may need time to stop.
	endPart(reason error)
}

// handleOf returns the result of a call for its caller.
func handleOf(b body, err error) (*Lock, error) {
	if err != nil {
		return nil, err
	}
	return b.handle(), nil
}

// identity is what a body and the events of it are known by.
type identity struct {
	claim
	madeAt   time.Duration // when it was made, by the clock of its Client
	reported hold.Reported // to the Stats and the Hooks
}

// notHeld stands for a nil or zero Lock.
var notHeld = conventions.Ended(ErrNotHeld)

// hold returns what the methods of the same names forward to.
func (l *Lock) hold() conventions.Hold {
	if !l.valid() {
		return notHeld
	}
	return l.body
}

func (l *Lock) valid() bool { return l != nil && l.body != nil }

// Name returns the name of the lock, or "" for a nil or zero Lock. The name of a Lock of a MultiMutex is its
// names, joined by commas.
func (l *Lock) Name() string {
	if !l.valid() {
		return ""
	}
	return l.body.known().name()
}

// Done returns a channel that is closed when the lock is no longer held: when it is lost or unlocked, or
// released by Client.Close. It is closed before the lease can end in Redis, even while Redis hangs, provided
// that this process gets to run and that its clock and the server's differ in rate by at most one percent.
//
// A removal of the key while the lease runs is noticed by the next renewal, within a third of the lease. If
// ForceUnlock removes it, it is noticed at once, or as soon as the Client has subscribed. Without renewal, only
// ForceUnlock, Extend and Unlock notice it.
func (l *Lock) Done() <-chan struct{} { return l.hold().Done() }

// Err returns nil while the lock is held. Afterwards it always returns the same error, which matches ErrLost,
// ErrClosed, or, after Unlock, ErrNotHeld.
func (l *Lock) Err() error { return l.hold().Err() }

// Valid reports whether the lock is held now, as far as this process knows without asking Redis. It is false
// once the lease has run out, even if Done is not closed yet. Call it right before an effect that must not
// overlap with the effects of another holder. Only a check by the resource, as of Token, closes the remaining
// gap.
func (l *Lock) Valid() bool { return l.hold().Valid() }

// Deadline returns the time at which the lock is lost unless it is renewed before. WithMaxHold may end it earlier. It
// counts from before the last granted request was sent, less the safety margin, so it is earlier than the end of the
// lease in Redis. It does not change after the end of the lock. It is the zero time for a nil or zero Lock.
func (l *Lock) Deadline() time.Time { return l.hold().Deadline() }

// Token returns the fencing token: a number that is higher than the tokens of all earlier holds of the name. A
// resource that refuses tokens below the highest it has seen is safe from holders that act too late.
//
// Token returns 0 if there is none: without WithFencing, for a reader of an RWMutex, and for a nil or zero Lock, as
// FromContext returns for a context of another lock. The resource must refuse 0 as well: as long as it has seen no
// token, a condition such as token <= $1 accepts it.
func (l *Lock) Token() int64 {
	if !l.valid() {
		return 0
	}
	return l.body.known().token
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
		return operationError("extend", l.Name(), conventions.Cause(ctx))
	}
	return named("extend", l.Name(), l.body.extend(ctx, d))
}

// Context returns a context that ends with parent or with the lock, whichever ends first. If it is the lock,
// context.Cause returns Err. FromContext, of the Mutex, MultiMutex or QuorumMutex, returns the lock of it. The
// context needs no cancel function: it is freed with the lock or with parent. Context panics with a
// *cogwheel.InvalidError if parent is nil.
func (l *Lock) Context(parent context.Context) context.Context {
	if parent == nil {
		panic(argument.Nil("context"))
	}
	ctx := l.hold().Context(parent)
	if !l.valid() {
		return ctx
	}
	return hold.With(ctx, hold.Name{Sort: l.sort(), Name: l.Name()}, l)
}

// The sorts of locks whose names are apart, in contexts.
const (
	single   = "" // those of one name on one server, which are one lock whatever their kind
	several  = "multi"
	majority = "quorum"
)

// sort returns the sort of a valid Lock.
func (l *Lock) sort() string {
	switch c, is := l.body.(*composite); {
	case !is:
		return single
	case c.gate == nil:
		return several
	}
	return majority
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
	return named("unlock", l.Name(), l.body.unlock(ctx))
}
