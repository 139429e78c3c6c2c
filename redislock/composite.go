package redislock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/contexts"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/joined"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// lease is what ends a Lock: a lease in Redis, or several of them that count as one.
type lease interface {
	Done() <-chan struct{}
	Err() error
	Valid() bool
	Deadline() time.Time
	Context(parent context.Context) context.Context
	Close(reason error) bool
}

// composite is the lease of a lock made of several, of which need must be held: all of a MultiMutex, a
// majority of a Quorum. Each part has a lease and a watchdog of its own. A composite ends once; from then on
// its parts are being released.
type composite struct {
	need   int
	gate   *gate.Gate      // of the Quorum whose Close ends it; nil if its parts are reported instead of it
	ctx    context.Context // its cause is how the composite ended
	cancel context.CancelCauseFunc

	mu       sync.Mutex // guards what follows
	parts    []*Lock
	lost     int
	err      error
	unlocked bool
	onEnd    func(error) // reports the end, with its reason
}

func newComposite(need int, parts []*Lock, g *gate.Gate) *composite {
	// All parts, before any is watched: what ends the composite releases no others.
	c := &composite{need: need, gate: g, parts: slices.Clone(parts)}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	for _, part := range parts {
		c.watch(part)
	}
	return c
}

// add adds a part, and reports whether the composite lasts.
func (c *composite) add(part *Lock) bool {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return false
	}
	c.parts = append(c.parts, part)
	c.mu.Unlock()
	c.watch(part)
	return true
}

func (c *composite) watch(part *Lock) {
	context.AfterFunc(part.lease.Context(c.ctx), func() { c.partEnded(part) })
}

// partEnded is called when a part or the composite has ended.
func (c *composite) partEnded(part *Lock) {
	err := part.Err()
	if err == nil {
		return
	}
	if !errors.Is(err, ErrClosed) && !errors.Is(err, ErrLost) {
		err = fmt.Errorf("%w: %s: %w", ErrLost, scripts.Quote(part.name()), err)
	}
	if c.gate != nil {
		if !c.gate.Enter() {
			return // Close ends it
		}
		defer c.gate.Leave()
	}
	c.mu.Lock()
	c.lost++
	ended := len(c.parts)-c.lost < c.need && c.endLocked(err)
	onEnd := c.onEnd
	c.mu.Unlock()
	if !ended {
		return
	}
	if onEnd != nil {
		onEnd(err)
	}
	// The holder may need time to stop, as after any loss. Unlock releases parts that were re-entered through
	// an Owner; until then they cannot be re-entered. A part that the Owner also holds by itself goes on.
	for _, part := range c.parts { // which do not change any more
		if part.entries() == 1 {
			part.underlying().end(err, part.ttl()/8)
		}
	}
}

// endLocked ends the composite, and reports whether it had not ended before.
func (c *composite) endLocked(err error) bool {
	if c.err != nil {
		return false
	}
	c.err = err
	c.cancel(err)
	return true
}

// Close implements lease.
func (c *composite) Close(reason error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.endLocked(reason)
}

// report has the end of the composite reported, also if it has ended.
func (c *composite) report(onEnd func(error)) {
	c.mu.Lock()
	err := c.err
	c.onEnd = onEnd
	c.mu.Unlock()
	if err != nil {
		onEnd(err)
	}
}

// Done implements lease.
func (c *composite) Done() <-chan struct{} { return c.ctx.Done() }

// Err implements lease.
func (c *composite) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Valid implements lease.
func (c *composite) Valid() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	valid := 0
	for _, part := range c.parts {
		if part.Valid() {
			valid++
		}
	}
	return c.err == nil && valid >= c.need
}

// Deadline implements lease: when there are too few parts left unless they are renewed.
func (c *composite) Deadline() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	ends := make([]time.Time, len(c.parts))
	for i, part := range c.parts {
		ends[i] = part.Deadline()
	}
	slices.SortFunc(ends, func(a, b time.Time) int { return b.Compare(a) })
	return ends[c.need-1]
}

// Context implements lease.
func (c *composite) Context(parent context.Context) context.Context {
	return contexts.EndingWith(parent, c.ctx)
}

// unlock releases every part, once, whether the composite was lost or not.
func (c *composite) unlock(ctx context.Context) (err error) {
	c.mu.Lock()
	first := !c.unlocked
	c.unlocked = true
	held := c.endLocked(ErrNotHeld)
	onEnd := c.onEnd
	c.mu.Unlock()
	entered := held && onEnd != nil && c.gate.Enter() // otherwise Close reports the end
	if first {
		err = each(c.members(), c.need, func(part *Lock) error { return part.Unlock(ctx) })
	}
	if entered {
		onEnd(err)
		c.gate.Leave()
	}
	if !held {
		return c.Err()
	}
	return err
}

// extend extends every part.
func (c *composite) extend(ctx context.Context, d time.Duration) error {
	if err := c.Err(); err != nil {
		return err
	}
	err := each(c.members(), c.need, func(part *Lock) error { return part.Extend(ctx, d) })
	if ended := c.Err(); ended != nil {
		return ended
	}
	return err
}

// members returns the present parts.
func (c *composite) members() []*Lock {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.parts)
}

// each calls f for every part at the same time. It returns nil as soon as need calls have succeeded, or all
// errors.
func each(parts []*Lock, need int, f func(*Lock) error) error {
	results := make(chan error, len(parts))
	for _, part := range parts {
		go func() { results <- f(part) }()
	}
	var errs []error
	for done := range parts {
		if err := <-results; err != nil {
			errs = append(errs, err)
		} else if done+1-len(errs) == need {
			return nil
		}
	}
	return joined.Errors(errs...)
}

// unlockAll unlocks the parts of a lock that could not be taken as a whole. What fails is retried in the
// background.
func unlockAll(ctx context.Context, parts []*Lock) {
	_ = each(parts, len(parts), func(part *Lock) error { return part.Unlock(ctx) })
}

// abandon releases, in the background, a lock that was taken for a caller that does not get it.
func (l *Lock) abandon() {
	e, entered := l.lease.(*entry)
	if !entered {
		l.end(ErrNotHeld, 0)
	} else if e.Close(ErrNotHeld) && e.hold.leave() {
		e.hold.lock.end(ErrNotHeld, 0)
	}
}

// end ends a lock for a reason, and releases it in the background after a while. When its Client is being
// closed, it leaves that to Close.
func (l *Lock) end(reason error, after time.Duration) {
	if !l.client().gate.Enter() {
		return
	}
	defer l.client().gate.Leave()
	if !l.lease.Close(reason) {
		return
	}
	l.client().monitor.ended(l, reason)
	l.client().drop(l)
	l.releaseLater(after, false)
}
