package semaphore

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// Grant is what Acquire of a Leased got: permits that are held together, renewed together and lost together. It is safe for
// concurrent use. A grant of no permits is held until it is released.
//
// Ground rules. mu guards what is below it. terms counts the leases that the grant had one after another, and term is the one
// in force: what is heard of an earlier one is not about it. err is set once, and never by two.
type Grant struct {
	client *Client
	name   string
	fair   bool
	renew  bool
	ids    []string
	token  int64
	doubt  bool // a copy of the request may still be under way

	mu     sync.Mutex
	terms  int
	term   int
	lease  *renewal.Lease // nil for no permits
	ttl    time.Duration
	err    error
	ctx    context.Context // nil until somebody asks for Done or Context
	cancel context.CancelCauseFunc
}

// errReplaced ends a lease that another follows.
var errReplaced = errors.New("semaphore: lease replaced")

// hold has the grant looked after for a lease that Redis granted at sentAt or later.
func (g *Grant) hold(ttl time.Duration, sentAt time.Time) error {
	g.mu.Lock()
	g.terms++
	term := g.terms
	g.mu.Unlock()
	c := g.client
	spec := renewal.Spec{
		Key: keysOf(g.name, g.fair).leases, ID: strings.Join(g.ids, ""), TTL: ttl, SentAt: sentAt, Lost: ErrLost,
		OnLost: func(err error) { g.lost(term, err) },
	}
	var lease *renewal.Lease
	var err error
	if g.renew {
		lease, err = c.leases.Add(spec)
	} else {
		lease, err = c.renewer.Watch(spec)
	}
	if err != nil {
		return err
	}
	g.mu.Lock()
	old, over := g.lease, g.err
	g.lease, g.ttl, g.term = lease, ttl, term
	g.mu.Unlock()
	if old != nil {
		old.Close(errReplaced)
	}
	if over != nil {
		lease.Close(over)
		return over
	}
	return nil
}

// IDs returns the ids of the permits, 32 hex digits each, as Redisson reports them.
func (g *Grant) IDs() []string {
	ids := make([]string, len(g.ids))
	for i, id := range g.ids {
		ids[i] = hex.EncodeToString([]byte(id))
	}
	return ids
}

// Token is a number that rises with every grant of the semaphore, also across a loss of Redis' data as long as its clock
// goes forward. Whoever takes effects of several holders one after another can refuse those with a lower number than the last.
// It is 0 for a grant of no permits.
func (g *Grant) Token() int64 { return g.token }

// Done is closed when the permits are no longer held: lost, released, or released by the Client's Close. A loss is announced
// before Redis can give the permits to another, also while Redis hangs, as long as this process gets to run and its clock
// differs from the server's by at most one percent in rate.
func (g *Grant) Done() <-chan struct{} { return g.base().Done() }

// Err is nil while the permits are held. Then it is, for good, an error matching ErrLost, ErrNotHeld after Release, or ErrClosed.
func (g *Grant) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// Valid reports whether the permits are held at this instant as far as this process can know. It does not talk to Redis.
func (g *Grant) Valid() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err == nil && (g.lease == nil || g.lease.Valid())
}

// Deadline is the instant at which the permits are lost unless they are renewed before, margin already taken off. It is zero
// for a grant of no permits.
func (g *Grant) Deadline() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lease == nil {
		return time.Time{}
	}
	return g.lease.Deadline()
}

// Context returns a context that ends with parent or with the grant; in the second case its context.Cause is the grant's Err.
// It needs no goroutine and no cancel function: it is released with the grant or its parent.
func (g *Grant) Context(parent context.Context) context.Context {
	base := g.base()
	ctx, cancel := context.WithCancelCause(parent)
	if base.Err() != nil {
		cancel(context.Cause(base))
		return ctx
	}
	stop := context.AfterFunc(base, func() { cancel(context.Cause(base)) })
	context.AfterFunc(ctx, func() { stop() })
	return ctx
}

// Extend sets the lease to d from now, 1 ms to 365 days, also for the renewals that follow. It blocks for one round trip. The
// error is ErrLost if the permits were lost, ErrNotHeld if they were released; after any other the earlier lease goes on. What
// Redis has promised already it keeps: after a d that ends sooner, permits of a holder that dies come back when the earlier lease is over.
func (g *Grant) Extend(ctx context.Context, d time.Duration) error {
	if err := checkLease("lease", d); err != nil {
		return err
	}
	if err := g.client.checkLease("lease", d); err != nil {
		return err
	}
	if err := g.Err(); err != nil {
		return err
	}
	if len(g.ids) == 0 {
		return nil
	}
	// Never sooner than before: the reply may be lost, or a copy of the call come late, and the holder believe what was promised first.
	args := []any{"GT", calls.Millis(d), len(g.ids)}
	for _, id := range g.ids {
		args = append(args, id)
	}
	r, err := g.client.call(ctx, "extend", g.name, scripts.PermitRenew, []string{keysOf(g.name, g.fair).leases}, args...)
	if err != nil {
		return err
	}
	held, err := r.Int64Slice()
	if err != nil {
		return operationError("extend", g.name, err)
	}
	if slices.Contains(held, 0) {
		g.lose(fmt.Errorf("%w: %q: gone from Redis when it was extended", ErrLost, g.name))
		return g.Err()
	}
	if err := g.hold(d, r.SentAt); err != nil && g.Err() == nil {
		if _, late := errors.AsType[*renewal.LostError](err); late {
			err = errors.New("the answer took longer than the lease")
		}
		return operationError("extend", g.name, err)
	}
	return g.Err()
}

// Release gives the permits back and wakes those who wait. Whatever it returns, they are no longer held: Done is closed and
// no renewal is sent any more. Releasing again does nothing and returns nil. It blocks for one round trip, which
// releases of one process that come at the same time share.
//
// The release does not depend on ctx: it is sent even if ctx has ended. If Redis fails to confirm it, or ctx ended a second ago, the
// error matches ErrUnconfirmed; the release is then retried in the background until the lease is over. The error matches ErrLost
// if the permits were lost before, ErrClosed if the Client was closed. The permits of others are never touched.
func (g *Grant) Release(ctx context.Context) error {
	if ctx == nil {
		return &InvalidError{Field: "context", Value: "nil", Reason: "must not be nil"}
	}
	if len(g.ids) == 0 {
		g.end(ErrNotHeld)
		return nil
	}
	c := g.client
	if !c.gate.Enter() { // Close releases it
		if err := g.Err(); err != nil && !errors.Is(err, ErrNotHeld) {
			return err
		}
		return ErrClosed
	}
	defer c.gate.Leave()
	began, deadline := time.Now(), g.Deadline()
	if !g.end(ErrNotHeld) {
		if err := g.Err(); !errors.Is(err, ErrNotHeld) {
			return err
		}
		return nil
	}
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
	default:
		return fmt.Errorf("%w: %q: gone from Redis when they were released", ErrLost, g.name)
	}
}

// giveNow queues the release and waits for it until ctx ends.
func (c *Client) giveNow(ctx context.Context, g *Grant) (*giving, error) {
	q, x := c.queueOf(g.fair), &giving{ids: g.ids}
	finish := func(err error) error {
		if err != nil && !calls.Final(err) || g.doubt {
			c.late.add(g.leftover(), 0)
		}
		return unconfirmed("release", g.name, err)
	}
	if ctx.Done() == nil {
		_, err := q.Wait(ctx, g.name, x)
		return x, finish(err)
	}
	done := make(chan error, 1)
	c.gate.EnterInside()
	q.WaitFunc(context.WithoutCancel(ctx), g.name, x, func(_ *giving, err error) {
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

// end ends the grant by its holder's doing, and reports whether this call did.
func (g *Grant) end(reason error) bool {
	g.mu.Lock()
	if g.err != nil {
		g.mu.Unlock()
		return false
	}
	g.err = reason
	lease, cancel := g.lease, g.cancel
	g.mu.Unlock()
	if lease != nil {
		lease.Close(reason)
	}
	if cancel != nil {
		cancel(reason)
	}
	g.client.drop(g)
	return true
}

// lose ends the grant without its holder's doing.
func (g *Grant) lose(err error) { g.end(err) }

// lost is called once for a lease that ended by itself.
func (g *Grant) lost(term int, err error) {
	g.mu.Lock()
	current, ttl := term >= g.term, g.ttl // one that has just been made may end before hold has returned
	g.mu.Unlock()
	if !current || errors.Is(err, renewal.ErrClosed) || !g.end(err) {
		return
	}
	if lost, ok := errors.AsType[*renewal.LostError](err); ok && !errors.Is(err, renewal.ErrGone) {
		// A renewal that was given up may still have been executed and keep the permits for another lease that nobody uses.
		// Release them, but not before the time for which they were last promised to the holder: he may need it to stop.
		g.client.late.add(g.leftover(), time.Until(lost.Due.Add(ttl/8)))
	}
}

// base is made on demand: most grants are never asked for a channel.
func (g *Grant) base() context.Context {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx == nil {
		g.ctx, g.cancel = context.WithCancelCause(context.Background())
		if g.err != nil {
			g.cancel(g.err)
		}
	}
	return g.ctx
}

// leftover is what may be left of the grant in Redis.
func (g *Grant) leftover() *leftover {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.client.leftover(g.name, g.fair, g.ids, g.ttl, g.doubt)
}
