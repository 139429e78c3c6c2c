package redislock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// composite is a lock with parts, of which need must be held: all parts of a MultiMutex, a majority of a Quorum. Each
// part has a separate lease and watchdog. A composite ends once; from then on its parts are being released, and none is
// added. It implements body.
type composite struct {
	identity
	lock   Lock // for its caller
	end    conventions.End
	need   int
	gate   *gate.Gate        // of the Quorum whose Close ends it; nil if only the parts are reported
	onLost func(part, error) // called with each part that is lost while the composite is held; nil: none

	mu       sync.Mutex            // guards what follows, and that the end comes
	parts    []part                // held or lost; after the end they do not change
	lost     map[part]bool         // parts that were lost before the end
	vacant   map[*vacancy]struct{} // servers of a Quorum without a part, while they wait on the wheel
	unlocked bool
	onEnd    func(error) // reports the end and its reason
}

// newComposite returns a composite of the parts. start must follow.
func (c *Client) newComposite(name string, need int, parts []part, g *gate.Gate) *composite {
	made := &composite{
		need: need, gate: g, parts: parts, lost: make(map[part]bool), vacant: make(map[*vacancy]struct{}),
	}
	made.mutex, made.madeAt = &Mutex{kind: multi, name: name, config: c.defaults}, c.clock.Now()
	made.lock.body = made
	return made
}

// handle implements body.
func (c *composite) handle() *Lock { return &c.lock }

// start watches the parts. All are entered before any is watched: whatever ends the composite releases them
// all, and only them.
func (c *composite) start() {
	for _, p := range c.members() {
		c.watch(p)
	}
}

// add adds a part, in place of a lost part of the same server, and reports whether it did. It does not after the
// end, nor if too few parts are valid: then the composite must not become valid again.
func (c *composite) add(h *held) bool {
	c.mu.Lock()
	if !c.validLocked() {
		c.mu.Unlock()
		return false
	}
	same := func(p part) bool { return p.known().client() == h.client() }
	c.parts = slices.DeleteFunc(c.parts, func(p part) bool { return c.lost[p] && same(p) })
	maps.DeleteFunc(c.lost, func(p part, _ bool) bool { return same(p) })
	c.parts = append(c.parts, h)
	c.mu.Unlock()
	c.watch(h)
	return true
}

// wants reports whether a vacancy whose wait is over may ask for its part.
func (c *composite) wants(v *vacancy) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.vacant, v)
	return c.validLocked()
}

func (c *composite) watch(p part) {
	context.AfterFunc(p.Context(c.end.Base()), func() { c.partEnded(p) })
}

// partEnded is called when a part or the composite has ended.
func (c *composite) partEnded(p part) {
	err := p.Err()
	if err == nil {
		return
	}
	if !errors.Is(err, ErrClosed) && !errors.Is(err, ErrLost) {
		err = fmt.Errorf("%w: %s: %w", ErrLost, scripts.Quote(p.known().name()), err)
	}
	if c.gate != nil {
		if !c.gate.Enter() {
			return // Close ends it
		}
		defer c.gate.Leave()
	}
	held, ended, onEnd := c.lose(p, err)
	if held && c.onLost != nil {
		c.onLost(p, err)
	}
	if !ended {
		return
	}
	if onEnd != nil {
		onEnd(err)
	}
	for _, p := range c.members() {
		p.endPart(err)
	}
}

// lose counts a part that has ended. held reports whether enough are left, ended whether this was the end.
func (c *composite) lose(p part, err error) (held, ended bool, onEnd func(error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.Err() != nil:
	case len(c.parts)-len(c.lost) <= c.need:
		ended = c.endLocked(err)
	default:
		held, c.lost[p] = true, true
	}
	return held, ended, c.onEnd
}

// endLocked ends the composite, and reports whether it had not ended before.
func (c *composite) endLocked(err error) bool {
	if !c.end.Close(err) {
		return false
	}
	for v := range c.vacant {
		v.timer.Stop()
	}
	clear(c.vacant)
	return true
}

// close ends the composite, unless it has ended. Its parts stay as they are.
func (c *composite) close(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(reason)
}

// report sets onEnd, and calls it if the composite has already ended.
func (c *composite) report(onEnd func(error)) {
	c.mu.Lock()
	err := c.Err()
	c.onEnd = onEnd
	c.mu.Unlock()
	if err != nil {
		onEnd(err)
	}
}

// Done implements body.
func (c *composite) Done() <-chan struct{} { return c.end.Done() }

// Err implements body.
func (c *composite) Err() error { return c.end.Err() }

// Context implements body.
func (c *composite) Context(parent context.Context) context.Context { return c.end.Context(parent) }

// Valid implements body.
func (c *composite) Valid() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.validLocked()
}

// validLocked reports whether the composite has not ended and enough parts are valid. Once they are not, they never are
// again.
func (c *composite) validLocked() bool {
	if c.Err() != nil {
		return false
	}
	valid := 0
	for _, p := range c.parts {
		if p.Valid() {
			valid++
		}
	}
	return valid >= c.need
}

// Deadline implements body: the time at which too few parts are left unless they are renewed.
func (c *composite) Deadline() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	ends := make([]time.Time, 0, len(c.parts))
	for _, p := range c.parts {
		if !c.lost[p] {
			ends = append(ends, p.Deadline())
		}
	}
	slices.SortFunc(ends, func(a, b time.Time) int { return b.Compare(a) })
	return ends[c.need-1]
}

// unlock implements body: it releases every part once, whether or not the composite was lost.
func (c *composite) unlock(ctx context.Context) (err error) {
	c.mu.Lock()
	first := !c.unlocked
	c.unlocked = true
	held := c.endLocked(ErrNotHeld)
	onEnd := c.onEnd
	c.mu.Unlock()
	entered := held && onEnd != nil && c.gate.Enter() // else Close reports the end
	if first {
		err = each(c.members(), c.need, func(p part) error { return unlockPart(ctx, p) })
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

// extend implements body: it extends every part.
func (c *composite) extend(ctx context.Context, d time.Duration) error {
	if err := c.Err(); err != nil {
		return err
	}
	err := each(c.members(), c.need, func(p part) error {
		return named("extend", p.known().name(), p.extend(ctx, d))
	})
	if ended := c.Err(); ended != nil {
		return ended
	}
	return err
}

// members returns the present parts.
func (c *composite) members() []part {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.parts)
}

// each calls f for all parts concurrently. It returns nil as soon as need calls have succeeded, or else all
// errors.
func each(parts []part, need int, f func(part) error) error {
	results := make(chan error, len(parts))
	for _, p := range parts {
		go func() { results <- f(p) }()
	}
	var errs []error
	for done := range parts {
		if err := <-results; err != nil {
			errs = append(errs, err)
		} else if done+1-len(errs) == need {
			return nil
		}
	}
	return conventions.Join(errs...)
}

// unlockPart unlocks one part.
func unlockPart(ctx context.Context, p part) error {
	return named("unlock", p.known().name(), p.unlock(ctx))
}

// unlockAll unlocks the parts of a lock that could not be taken as a whole. A release that fails is retried in
// the background.
func unlockAll(ctx context.Context, parts []part) {
	_ = each(parts, len(parts), func(p part) error { return unlockPart(ctx, p) })
}

// leaveAll is unlockAll for a caller that returns when ctx ends. The rest then happens in the background,
// without a goroutine if ctx had ended before.
func leaveAll(ctx context.Context, parts []part) {
	if len(parts) == 0 {
		return
	}
	if ctx.Err() != nil {
		for _, p := range parts {
			p.abandon()
		}
		return
	}
	c := parts[0].known().client()
	if !c.gate.Enter() {
		return // Close releases them
	}
	defer c.gate.Leave()
	gate.Await(&c.gate, ctx.Done(), func() struct{} {
		unlockAll(ctx, parts)
		return struct{}{}
	})
}
