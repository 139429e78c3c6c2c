package semaphore

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/contexts"
	"github.com/cogwheel-go/cogwheel/internal/highest"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/signals"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// Grant is a number of permits that were acquired together. They are renewed, lost and released together. A
// grant of no permits is held until its Release, also after Client.Close.
//
// A Grant is safe for concurrent use. A nil or zero Grant is not held: Done is closed, Context has ended,
// and Err, Extend and Release return ErrNotHeld.
type Grant struct {
	client    *Client
	name      string
	ids       []string // idLen bytes each
	token     int64
	ttl       time.Duration
	madeAt    time.Duration // since monitor.origin
	lease     lease
	reported  signals.Hold // to the Stats and the Hooks
	fair      bool
	ambiguous bool // a copy of the request may still be in flight

	longestExtension atomic.Int64 // nanoseconds
}

// lease is how long a grant is held: a *renewal.Lease, or an *unlimitedLease for no permits.
type lease interface {
	Done() <-chan struct{}
	Err() error
	Valid() bool
	Deadline() time.Time
	Context(parent context.Context) context.Context
	Close(reason error) bool
}

// startLease starts the lease of permits that Redis granted. Their request was sent at sentAt or later.
func (g *Grant) startLease(renew bool, sentAt time.Time) (err error) {
	c := g.client
	spec := renewal.Spec{
		Key: g.name, ID: g.leaseID(), TTL: g.ttl, SentAt: sentAt,
		Lost: ErrLost, OnLost: g.onLost,
	}
	if renew {
		g.lease, err = c.destination(g.fair).Add(spec)
	} else {
		g.lease, err = c.redis.Renewer.Watch(spec)
	}
	return err
}

// isZero reports whether the grant is nil or zero.
func (g *Grant) isZero() bool { return g == nil || g.lease == nil }

// IDs returns the ids of the permits, 32 hex digits each, as Redisson reports them.
func (g *Grant) IDs() []string {
	if g.isZero() {
		return nil
	}
	ids := make([]string, len(g.ids))
	for i, id := range g.ids {
		ids[i] = hex.EncodeToString([]byte(id))
	}
	return ids
}

// Token returns the fencing token: a number that is greater for each later grant of the semaphore, even after
// Redis has lost its data, as long as the clock of Redis does not go back. A resource that refuses tokens
// below the greatest it has seen fences off a holder that was frozen. If several grants may be held at once,
// compare only the tokens of grants that write the same data: an earlier grant may still be valid. The token
// of a grant of no permits is 0.
func (g *Grant) Token() int64 {
	if g.isZero() {
		return 0
	}
	return g.token
}

// Done returns a channel that is closed when the permits are no longer held: when they are lost or released,
// also by Client.Close. It is closed before the lease can end in Redis, even while Redis hangs, provided that
// this process gets to run and that its clock and the server's differ in rate by at most one percent. A removal
// of the permits while the lease runs is noticed by the next renewal, within a third of the lease. Without
// renewal, only Extend and Release notice it.
func (g *Grant) Done() <-chan struct{} {
	if g.isZero() {
		done := make(chan struct{})
		close(done)
		return done
	}
	return g.lease.Done()
}

// Err returns nil while the permits are held. Afterwards it always returns the same error, which matches
// ErrLost, ErrClosed, or, after Release, ErrNotHeld.
func (g *Grant) Err() error {
	if g.isZero() {
		return ErrNotHeld
	}
	err := g.lease.Err()
	if errors.Is(err, renewal.ErrClosed) {
		return ErrClosed
	}
	return err
}

// Valid reports whether the permits are held now, as far as this process knows without asking Redis. It is
// false once the lease has run out, even if Done is not closed yet.
func (g *Grant) Valid() bool { return !g.isZero() && g.lease.Valid() }

// Deadline returns the time at which the permits are lost unless they are renewed before. It is earlier
// than the end of the lease in Redis: by 1 % of the lease, a tenth of the lease up to 50 ms, and one tick
// of the wheel. It is the zero time for a grant of no permits.
func (g *Grant) Deadline() time.Time {
	if g.isZero() {
		return time.Time{}
	}
	return g.lease.Deadline()
}

// Context returns a context that ends with parent or with the grant, whichever ends first. If it is the
// grant, context.Cause returns Err. FromContext returns the grant of it. The context needs no cancel function:
// it is freed with the grant or with parent. Context panics with a *cogwheel.InvalidError if parent is nil.
func (g *Grant) Context(parent context.Context) context.Context {
	if parent == nil {
		panic(argument.Nil("context"))
	}
	if g.isZero() {
		ctx, cancel := context.WithCancelCause(parent)
		cancel(ErrNotHeld)
		return ctx
	}
	return context.WithValue(g.lease.Context(parent), grantOf(g.name), g)
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
	return named("extend", g.name, g.extend(ctx, d))
}

func (g *Grant) extend(ctx context.Context, d time.Duration) error {
	// This precedes the check of the lease: a release must know how long the permits may last.
	highest.Raise(&g.longestExtension, int64(d))
	if err := g.Err(); err != nil {
		return err
	}
	held, ok := g.lease.(*renewal.Lease)
	if !ok {
		return nil
	}
	c := g.client
	c.mayBeHeldFor(d)
	r, err := c.call(ctx, "extend", g.name, func() scripts.Call {
		args := appendIDs([]any{"GT", c.idleMillis, redisconn.Millis(d), len(g.ids)}, g.ids)
		return scripts.PermitRenew.Call(c.renewalKeys(g.name, g.fair), args...)
	})
	overwritten := errors.Is(err, ErrWrongKind)
	if err != nil && !overwritten {
		return err
	}
	renewed, err := r.Flags(len(g.ids))
	switch {
	case overwritten, slices.Contains(renewed, false):
		held.Gone()
	case err != nil:
		return operationError("extend", g.name, err)
	default:
		held.Prolong(r.SentAt, d)
	}
	return g.Err()
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
	return named("release", g.name, g.release(ctx))
}

func (g *Grant) release(ctx context.Context) error {
	if len(g.ids) == 0 {
		if !g.lease.Close(ErrNotHeld) {
			return g.Err()
		}
		return nil
	}
	c := g.client
	if !c.gate.Enter() { // Close releases the grant
		if err := g.Err(); err != nil {
			return err
		}
		return ErrClosed
	}
	defer c.gate.Leave()
	began, deadline := c.wheel.Now(), g.Deadline()
	request := &releaseRequest{ids: g.ids}
	release := func() error {
		return awaitRelease(ctx, c, c.releaseQueue(g.fair), g.name, request, func(err error) error {
			if err != nil && !redisconn.WrongKind(err) || g.ambiguous {
				g.releaseLater(0)
			}
			return releaseError(g.name, err)
		})
	}
	if !g.lease.Close(ErrNotHeld) {
		err := g.Err()
		if errors.Is(err, renewal.ErrUnwatched) { // nothing else releases it before Close
			_ = release()
		}
		return err
	}
	c.removeGrant(g)
	err := release()
	switch {
	case errors.Is(err, ErrWrongKind):
		err = fmt.Errorf("%w: %w", ErrLost, err)
	case err != nil:
	case request.removed == len(g.ids):
	case began.Before(deadline) && (request.ambiguous || !c.wheel.Now().Before(deadline)):
		// A first copy of the call, whose reply was lost, may have removed them, or the lease ended meanwhile.
	default:
		err = fmt.Errorf("%w: release %s: gone from Redis", ErrLost, scripts.Quote(g.name))
	}
	c.monitor.ended(g, err)
	return err
}

// releaseLater releases the permits in the background after a delay.
func (g *Grant) releaseLater(delay time.Duration) {
	lease := max(g.ttl, time.Duration(g.longestExtension.Load()))
	g.client.releaseLater(pendingRelease{g.name, g.fair, g.ids}, delay, lease, g.ambiguous)
}

// discard releases, in the background, a grant that its caller did not get. For a nil grant it does nothing.
func (g *Grant) discard() {
	if g != nil && g.lease.Close(ErrNotHeld) {
		g.client.removeGrant(g)
		g.releaseLater(0)
		g.client.monitor.ended(g, ErrNotHeld)
	}
}

// onLost is called once if the lease ends without Release.
func (g *Grant) onLost(err error) {
	c := g.client
	if lost, ok := errors.AsType[*renewal.LostError](err); ok && !errors.Is(err, renewal.ErrGone) {
		// A renewal without a reply may have executed and keep the permits for another lease. Release them, but
		// not before the former holder has had the time to stop that its lease promised.
		g.releaseLater(lost.Due.Add(g.ttl / 8).Sub(c.wheel.Now()))
	}
	if c.gate.Enter() { // else Close reports the end
		defer c.gate.Leave()
		c.removeGrant(g)
		c.monitor.ended(g, err)
	}
}

// unlimitedLease is the lease of no permits. Only Close ends it.
type unlimitedLease struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	closed sync.Once
}

func newUnlimitedLease() *unlimitedLease {
	l := &unlimitedLease{}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	return l
}

func (l *unlimitedLease) Done() <-chan struct{} { return l.ctx.Done() }
func (l *unlimitedLease) Err() error            { return context.Cause(l.ctx) }
func (l *unlimitedLease) Valid() bool           { return l.ctx.Err() == nil }
func (l *unlimitedLease) Deadline() time.Time   { return time.Time{} }

func (l *unlimitedLease) Context(parent context.Context) context.Context {
	return contexts.EndingWith(parent, l.ctx)
}

func (l *unlimitedLease) Close(reason error) (first bool) {
	l.closed.Do(func() {
		first = true
		l.cancel(reason)
	})
	return first
}
