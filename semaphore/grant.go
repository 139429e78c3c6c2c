package semaphore

import (
	"context"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/hold"
)

// Grant is a number of permits that were acquired together. They are renewed, lost and released together. A
// grant of no permits is held until its Release, also after Client.Close.
//
// A Grant is safe for concurrent use. A nil or zero Grant is not held: Done is closed, Context has ended,
// and Err, Extend and Release return ErrNotHeld.
type Grant struct{ held held }

// notHeld stands for a nil or zero Grant.
var notHeld = conventions.Ended(ErrNotHeld)

// hold returns what the methods of the same names forward to.
func (g *Grant) hold() conventions.Hold {
	switch {
	case g.isZero():
		return notHeld
	case g.held.unlimited != nil:
		return g.held.unlimited
	default:
		return &g.held
	}
}

// isZero reports whether the grant is nil or zero.
func (g *Grant) isZero() bool { return g == nil || g.held.client == nil }

// Name returns the name of the semaphore, or "" for a nil or zero Grant.
func (g *Grant) Name() string {
	if g.isZero() {
		return ""
	}
	return g.held.name
}

// IDs returns the ids of the permits, 32 hex digits each, as Redisson reports them.
func (g *Grant) IDs() []string {
	if g.isZero() {
		return nil
	}
	return g.held.hexIDs()
}

// Token returns the fencing token: a number that is greater for each later grant of the semaphore, even after
// Redis has lost its data, as long as the clock of Redis does not go back. A resource that refuses tokens
// below the greatest it has seen fences off a holder that was frozen. If several grants may be held at once,
// compare only the tokens of grants that write the same data: an earlier grant may still be valid.
//
// The token of a grant of no permits is 0, and so is that of a nil or zero Grant, as FromContext returns for a context
// of another semaphore. A resource must refuse 0 as well: as long as it has seen no token, a condition such as
// token <= $1 accepts it.
func (g *Grant) Token() int64 {
	if g.isZero() {
		return 0
	}
	return g.held.token
}

// Done returns a channel that is closed when the permits are no longer held: when they are lost or released,
// also by Client.Close. It is closed before the lease can end in Redis, even while Redis hangs, provided that
// this process gets to run and that its clock and the server's differ in rate by at most one percent. A removal
// of the permits while the lease runs is noticed by the next renewal, within a third of the lease. Without
// renewal, only Extend and Release notice it.
func (g *Grant) Done() <-chan struct{} { return g.hold().Done() }

// Err returns nil while the permits are held. Afterwards it always returns the same error, which matches
// ErrLost, ErrClosed, or, after Release, ErrNotHeld.
func (g *Grant) Err() error { return g.hold().Err() }

// Valid reports whether the permits are held now, as far as this process knows without asking Redis. It is
// false once the lease has run out, even if Done is not closed yet.
func (g *Grant) Valid() bool { return g.hold().Valid() }

// Deadline returns the time at which the permits are lost unless they are renewed before. It is earlier than the end of
// the lease in Redis: by 1 % of the lease, a tenth of the lease up to 50 ms, and one tick of the wheel. It is the zero
// time for a nil or zero Grant, and for a grant of no permits, which does not end by itself.
func (g *Grant) Deadline() time.Time { return g.hold().Deadline() }

// Context returns a context that ends with parent or with the grant, whichever ends first. If it is the
// grant, context.Cause returns Err. Semaphore.FromContext returns the grant of it. The context needs no cancel
// function: it is freed with the grant or with parent. Context panics with a *cogwheel.InvalidError if parent is nil.
func (g *Grant) Context(parent context.Context) context.Context {
	if parent == nil {
		panic(argument.Nil("context"))
	}
	ctx := g.hold().Context(parent)
	if g.isZero() {
		return ctx
	}
	return hold.With(ctx, contextName(g.held.name, g.held.fair), g)
}

// Extend makes the permits last for at least d from now, 1 ms to 365 days. It never shortens the lease, and
// neither do later renewals with the lease of the semaphore; so Extend lets the grant survive a longer
// outage of Redis. For a grant of no permits it does nothing. Extend blocks for one round trip, at most
// until ctx ends.
//
// The error matches ErrLost, ErrNotHeld or ErrClosed if the permits are no longer held. After any other error
// they are held as before, and may last longer in Redis than Deadline says.
func (g *Grant) Extend(ctx context.Context, d time.Duration) error {
	if g.isZero() {
		return ErrNotHeld
	}
	if err := checkLease("Extend", d); err != nil {
		return err
	}
	return named("extend", g.held.name, g.held.extend(ctx, d))
}

// Release releases the permits and wakes waiters. Whatever it returns, the permits are no longer held: Done
// is closed and renewal has ended. The exception is a nil ctx, for which Release returns a
// *cogwheel.InvalidError and does nothing. Release blocks for one round trip, which concurrent releases
// share.
//
// Release sends its command even if ctx has ended. The error matches ErrUnconfirmed if Redis did not confirm
// the release, or did not confirm it within a second after the end of ctx; the Client then retries in the
// background until the lease ends. The error matches ErrLost if the permits were lost before, ErrNotHeld if
// they were released before, and ErrClosed if the Client was closed. Permits whose lease ends while Release
// is on its way to Redis do not count as lost. Release never releases the permits of another grant.
func (g *Grant) Release(ctx context.Context) error {
	if g.isZero() {
		return ErrNotHeld
	}
	if ctx == nil {
		return argument.Nil("context")
	}
	return named("release", g.held.name, g.held.release(ctx))
}
