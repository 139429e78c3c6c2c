package redislock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/contexts"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/joined"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// lease decides the end of a Lock: a lease in Redis, or several that count as one.
type lease interface {
	Done() <-chan struct{}
	Err() error
	Valid() bool
	Deadline() time.Time
	Context(parent context.Context) context.Context
	Close(reason error) bool
}

// composite is the lease of a lock with parts, of which need must be held: all parts of a MultiMutex, a
// majority of a Quorum. Each part has a separate lease and watchdog. A composite ends once; from then on its
// parts are being released, and none is added.
type composite struct {
	need   int
	gate   *gate.Gate         // of the Quorum whose Close ends it; nil if only the parts are reported
	onLost func(*Lock, error) // called with each part that is lost while the composite is held; nil: none
	ctx    context.Context    // its cause is the reason for the end
	cancel context.CancelCauseFunc

	mu       sync.Mutex            // guards what follows
	parts    []*Lock               // held or lost; after the end they do not change
	lost     map[*Lock]bool        // parts that were lost before the end
	vacant   map[*vacancy]struct{} // servers of a Quorum without a part, while they wait on the wheel
	err      error
	unlocked bool
	onEnd    func(error) // reports the end and its reason
}

// newComposite returns a composite of the parts. start must follow.
func newComposite(need int, parts []*Lock, g *gate.Gate) *composite {
	c := &composite{
		need: need, gate: g, parts: slices.Clone(parts),
		lost: make(map[*Lock]bool), vacant: make(map[*vacancy]struct{}),
	}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	return c
}

// start watches the parts. All are entered before any is watched: whatever ends the composite releases them
// all, and only them.
func (c *composite) start() *composite {
	for _, part := range c.members() {
		c.watch(part)
	}
	return c
}

// add adds a part, in place of a lost part of the same server, and reports whether it did. It does not after the
// end, nor if too few parts are valid: then the composite must not become valid again.
func (c *composite) add(part *Lock) bool {
	c.mu.Lock()
	if c.err != nil || !c.validLocked() {
		c.mu.Unlock()
		return false
	}
	c.parts = slices.DeleteFunc(c.parts, func(l *Lock) bool { return c.lost[l] && l.client() == part.client() })
	maps.DeleteFunc(c.lost, func(l *Lock, _ bool) bool { return l.client() == part.client() })
	c.parts = append(c.parts, part)
	c.mu.Unlock()
	c.watch(part)
	return true
}

// wants reports whether a vacancy whose wait is over may ask for its part.
func (c *composite) wants(v *vacancy) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.vacant, v)
	return c.err == nil && c.validLocked()
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
	held, ended, onEnd := c.lose(part, err)
	if held && c.onLost != nil {
		c.onLost(part, err)
	}
	if !ended {
		return
	}
	if onEnd != nil {
		onEnd(err)
	}
	// The holder may need time to stop, as after any loss. A part that was re-entered through an Owner is
	// released by Unlock; until then it cannot be re-entered. A part that the Owner also holds separately stays
	// held.
	for _, part := range c.members() {
		if part.entries() == 1 {
			part.underlying().end(err, part.ttl()/8)
		}
	}
}

// lose counts a part that has ended. held reports whether enough are left, ended whether this was the end.
func (c *composite) lose(part *Lock, err error) (held, ended bool, onEnd func(error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
	case len(c.parts)-len(c.lost) <= c.need:
		ended = c.endLocked(err)
	default:
		held, c.lost[part] = true, true
	}
	return held, ended, c.onEnd
}

// endLocked ends the composite, and reports whether it had not ended before.
func (c *composite) endLocked(err error) bool {
	if c.err != nil {
		return false
	}
	c.err = err
	for v := range c.vacant {
		v.stop()
	}
	clear(c.vacant)
	c.cancel(err)
	return true
}

// Close implements lease.
func (c *composite) Close(reason error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.endLocked(reason)
}

// report sets onEnd, and calls it if the composite has already ended.
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
	return c.err == nil && c.validLocked()
}

// validLocked reports whether enough parts are valid. Once they are not, they never are again.
func (c *composite) validLocked() bool {
	valid := 0
	for _, part := range c.parts {
		if part.Valid() {
			valid++
		}
	}
	return valid >= c.need
}

// Deadline implements lease: the time at which too few parts are left unless they are renewed.
func (c *composite) Deadline() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	ends := make([]time.Time, 0, len(c.parts))
	for _, part := range c.parts {
		if !c.lost[part] {
			ends = append(ends, part.Deadline())
		}
	}
	slices.SortFunc(ends, func(a, b time.Time) int { return b.Compare(a) })
	return ends[c.need-1]
}

// Context implements lease.
func (c *composite) Context(parent context.Context) context.Context {
	return contexts.EndingWith(parent, c.ctx)
}

// unlock releases every part once, whether or not the composite was lost.
func (c *composite) unlock(ctx context.Context) (err error) {
	c.mu.Lock()
	first := !c.unlocked
	c.unlocked = true
	held := c.endLocked(ErrNotHeld)
	onEnd := c.onEnd
	c.mu.Unlock()
	entered := held && onEnd != nil && c.gate.Enter() // else Close reports the end
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

// each calls f for all parts concurrently. It returns nil as soon as need calls have succeeded, or else all
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

// unlockAll unlocks the parts of a lock that could not be taken as a whole. A release that fails is retried in
// the background.
func unlockAll(ctx context.Context, parts []*Lock) {
	_ = each(parts, len(parts), func(part *Lock) error { return part.Unlock(ctx) })
}

// leaveAll is unlockAll for a caller that returns when ctx ends. The rest then happens in the background,
// without a goroutine if ctx had ended before.
func leaveAll(ctx context.Context, parts []*Lock) {
	if len(parts) == 0 {
		return
	}
	if ctx.Err() != nil {
		for _, part := range parts {
			part.abandon()
		}
		return
	}
	c := parts[0].client()
	if !c.gate.Enter() {
		return // Close releases them
	}
	defer c.gate.Leave()
	gate.Await(&c.gate, ctx.Done(), func() struct{} {
		unlockAll(ctx, parts)
		return struct{}{}
	})
}

// abandon releases, in the background, a lock whose caller does not get it.
func (l *Lock) abandon() {
	e, entered := l.lease.(*entry)
	if !entered {
		l.end(ErrNotHeld, 0)
	} else if e.Close(ErrNotHeld) && e.hold.leave() {
		e.hold.lock.end(ErrNotHeld, 0)
	}
}

// end ends a lock for a reason, and releases it in the background after a delay. If the Client is being closed,
// it leaves both to Close.
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
