package semaphore

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// Grant is what Acquire of a Leased got: permits that are held together, renewed together and lost together. It is safe for concurrent
// use, and its methods are harmless on a nil or zero Grant, which is not held. A grant of no permits is held until it is released.
type Grant struct {
	client  *Client
	name    string
	fair    bool
	ids     []string
	token   int64
	ttl     time.Duration
	doubt   bool         // a copy of the request may still be under way
	longest atomic.Int64 // the longest extension asked for
	lease   lease
}

// lease is how long a grant lasts.
type lease interface {
	Done() <-chan struct{}
	Err() error
	Valid() bool
	Deadline() time.Time
	Context(parent context.Context) context.Context
	Close(reason error) bool
}

// hold has the grant looked after for a lease that Redis granted at sentAt or later.
func (g *Grant) hold(renew bool, sentAt time.Time) (err error) {
	c := g.client
	spec := renewal.Spec{
		Key: keysOf(g.name, g.fair).leases, ID: strings.Join(g.ids, ""), TTL: g.ttl, SentAt: sentAt, Lost: ErrLost, OnLost: g.lost,
	}
	if renew {
		g.lease, err = c.leases.Add(spec)
	} else {
		g.lease, err = c.renewer.Watch(spec)
	}
	return err
}

func (g *Grant) valid() bool { return g != nil && g.lease != nil }

// IDs returns the ids of the permits, 32 hex digits each, as Redisson reports them.
func (g *Grant) IDs() []string {
	if !g.valid() {
		return nil
	}
	ids := make([]string, len(g.ids))
	for i, id := range g.ids {
		ids[i] = hex.EncodeToString([]byte(id))
	}
	return ids
}

// Token is a number that rises with every grant of the semaphore, also across a loss of Redis' data as long as its clock goes forward. A
// resource on which several holders act one after another can refuse those with a lower number than the last. It is 0 for a grant
// of no permits.
func (g *Grant) Token() int64 {
	if !g.valid() {
		return 0
	}
	return g.token
}

// Done is closed when the permits are no longer held: lost, released, or released by the Client's Close. A loss is announced
// before Redis can give the permits to another, also while Redis hangs, as long as this process gets to run and its clock
// differs from the server's by at most one percent in rate.
func (g *Grant) Done() <-chan struct{} {
	if !g.valid() {
		done := make(chan struct{})
		close(done)
		return done
	}
	return g.lease.Done()
}

// Err is nil while the permits are held. Then it is, for good, an error matching ErrLost, ErrNotHeld after Release, or ErrClosed.
func (g *Grant) Err() error {
	if !g.valid() {
		return ErrNotHeld
	}
	err := g.lease.Err()
	if errors.Is(err, renewal.ErrClosed) {
		return ErrClosed
	}
	return err
}

// Valid reports whether the permits are held at this instant as far as this process can know. It does not talk to Redis.
func (g *Grant) Valid() bool { return g.valid() && g.lease.Valid() }

// Deadline is the instant at which the permits are lost unless they are renewed before, margin already taken off. It is zero
// for a grant of no permits.
func (g *Grant) Deadline() time.Time {
	if !g.valid() {
		return time.Time{}
	}
	return g.lease.Deadline()
}

// Context returns a context that ends with parent or with the grant; in the second case its context.Cause is the grant's Err.
// It needs no goroutine and no cancel function: it is released with the grant or its parent.
func (g *Grant) Context(parent context.Context) context.Context {
	if !g.valid() {
		ctx, cancel := context.WithCancelCause(parent)
		cancel(ErrNotHeld)
		return ctx
	}
	return g.lease.Context(parent)
}

// Extend makes the permits last for d from now, 1 ms to 365 days, if they would end sooner; it never makes that shorter. A grant with renewal goes on being renewed for its lease: for that one, Extend is a way to survive a longer outage of Redis. It
// blocks for one round trip, at most until ctx ends.
//
// The error matches ErrLost, ErrNotHeld or ErrClosed if the permits are not held any more. After any other error they are held as before
// and may last longer in Redis than Deadline tells.
func (g *Grant) Extend(ctx context.Context, d time.Duration) error {
	if !g.valid() {
		return ErrNotHeld
	}
	if err := checkLease("Extend", d); err != nil {
		return err
	}
	// Before the lease is looked at: a release has to know for how long the permits may be kept.
	for most := g.longest.Load(); most < int64(d) && !g.longest.CompareAndSwap(most, int64(d)); most = g.longest.Load() {
	}
	if err := g.Err(); err != nil {
		return err
	}
	held, ok := g.lease.(*renewal.Lease)
	if !ok {
		return nil
	}
	args := []any{"GT", calls.Millis(d), len(g.ids)}
	for _, id := range g.ids {
		args = append(args, id)
	}
	r, err := g.client.call(ctx, "extend", g.name, scripts.PermitRenew, []string{keysOf(g.name, g.fair).leases}, args...)
	if err != nil && !errors.Is(err, ErrWrongKind) {
		return err
	}
	renewed, err := r.Int64Slice()
	switch {
	case err != nil && !errors.Is(err, ErrWrongKind):
		return operationError("extend", g.name, err)
	case err != nil, slices.Contains(renewed, 0):
		held.Gone()
	default:
		held.Prolong(r.SentAt, d)
	}
	return g.Err()
}

// Release gives the permits back and wakes those who wait. Whatever it returns, they are no longer held: Done is closed and
// no renewal is sent any more. It blocks for one round trip, which releases of one process that come at the same time share.
//
// The release does not depend on ctx: it is sent even if ctx has ended. If Redis fails to confirm it, or ctx ended a second ago, the
// error matches ErrUnconfirmed; the release is then retried in the background until the lease is over. The error matches ErrLost
// if the permits were lost before, ErrNotHeld if they were released before, ErrClosed if the Client was closed. The permits of
// others are never touched. Permits that were held when Release was called are not lost, however long Redis took to answer.
func (g *Grant) Release(ctx context.Context) error {
	if !g.valid() {
		return ErrNotHeld
	}
	if ctx == nil {
		return argument.Nil("context")
	}
	if len(g.ids) == 0 {
		if !g.lease.Close(ErrNotHeld) {
			return g.Err()
		}
		return nil
	}
	c := g.client
	if !c.gate.Enter() { // Close releases it
		if err := g.Err(); err != nil {
			return err
		}
		return ErrClosed
	}
	defer c.gate.Leave()
	began, deadline := time.Now(), g.Deadline()
	if !g.lease.Close(ErrNotHeld) {
		return g.Err()
	}
	c.drop(g)
	back, err := c.giveNow(ctx, g)
	switch {
	case errors.Is(err, ErrWrongKind):
		return fmt.Errorf("%w: %w", ErrLost, err)
	case err != nil:
		return err
	case back.removed == len(g.ids), back.doubt: // an unanswered first copy has removed them
		return nil
	case began.Before(deadline) && !time.Now().Before(deadline): // the lease has ended since, and not before
		return nil
	}
	return fmt.Errorf("%w: release %s: gone from Redis", ErrLost, scripts.Quote(g.name))
}

// giveNow queues the release and waits for it until ctx ends.
func (c *Client) giveNow(ctx context.Context, g *Grant) (*releaseRequest, error) {
	q, x := c.queueOf(g.fair), &releaseRequest{ids: g.ids}
	finish := func(err error) error {
		if err != nil && !calls.Final(err) || g.doubt {
			g.releaseLater(0)
		}
		return unconfirmed("release", g.name, err)
	}
	if ctx.Done() == nil {
		_, err := q.Wait(ctx, g.name, x)
		return x, finish(err)
	}
	done := make(chan error, 1)
	c.gate.EnterInside()
	q.WaitFunc(context.WithoutCancel(ctx), g.name, x, func(_ *releaseRequest, err error) {
		defer c.gate.Leave()
		done <- finish(err)
	})
	patience, stop := c.patience(ctx)
	defer stop()
	select {
	case err := <-done:
		return x, err
	case <-patience:
		return nil, unconfirmed("release", g.name, calls.Ended(ctx))
	}
}

// lost is called once if the lease ends without Release.
func (g *Grant) lost(err error) {
	g.client.drop(g)
	if lost, ok := errors.AsType[*renewal.LostError](err); ok && !errors.Is(err, renewal.ErrGone) {
		// A renewal that was given up may still have been executed and keep the permits for another lease that nobody uses.
		// Release them, but not before the time for which they were last promised to the holder: it may need it to stop.
		g.releaseLater(time.Until(lost.Due.Add(g.ttl / 8)))
	}
}

// unlimited is the lease of no permits.
type unlimited struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	closed sync.Once
}

func newUnlimited() *unlimited {
	u := &unlimited{}
	u.ctx, u.cancel = context.WithCancelCause(context.Background())
	return u
}

func (u *unlimited) Done() <-chan struct{} { return u.ctx.Done() }
func (u *unlimited) Err() error            { return context.Cause(u.ctx) }
func (u *unlimited) Valid() bool           { return u.ctx.Err() == nil }
func (u *unlimited) Deadline() time.Time   { return time.Time{} }

func (u *unlimited) Context(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	stop := context.AfterFunc(u.ctx, func() { cancel(context.Cause(u.ctx)) })
	context.AfterFunc(ctx, func() { stop() })
	return ctx
}

func (u *unlimited) Close(reason error) (first bool) {
	u.closed.Do(func() {
		first = true
		u.cancel(reason)
	})
	return first
}
