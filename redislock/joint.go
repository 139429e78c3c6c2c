package redislock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/joined"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// span is how long a Lock lasts: a lease, or several that count as one.
type span interface {
	Done() <-chan struct{}
	Err() error
	Valid() bool
	Deadline() time.Time
	Context(parent context.Context) context.Context
	Close(reason error) bool
}

// joint makes one lock of several, of which need must be held: all of a MultiMutex, a majority of a Quorum. Each part has a lease
// and a watchdog of its own.
//
// Ground rules. mu guards what stands below it. The joint ends once, in end; from then on its parts are on their way back. Watchers
// of parts come too late to matter after that.
type joint struct {
	need   int
	ctx    context.Context // its cause is how the joint ended
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	parts    []*Lock
	lost     int
	err      error
	unlocked bool
}

func newJoint(need int, parts []*Lock) *joint {
	j := &joint{need: need, parts: slices.Clone(parts)} // all of them before any is watched: what ends the joint gives back no others
	j.ctx, j.cancel = context.WithCancelCause(context.Background())
	for _, part := range parts {
		j.watch(part)
	}
	return j
}

// add takes in a part and reports whether the joint lasts.
func (j *joint) add(part *Lock) bool {
	j.mu.Lock()
	if j.err != nil {
		j.mu.Unlock()
		return false
	}
	j.parts = append(j.parts, part)
	j.mu.Unlock()
	j.watch(part)
	return true
}

func (j *joint) watch(part *Lock) {
	context.AfterFunc(part.lease.Context(j.ctx), func() { j.over(part) })
}

// over is called when a part or the joint has ended.
func (j *joint) over(part *Lock) {
	err := part.Err()
	if err == nil {
		return
	}
	if !errors.Is(err, ErrClosed) && !errors.Is(err, ErrLost) {
		err = fmt.Errorf("%w: %s: %w", ErrLost, scripts.Quote(part.name()), err)
	}
	j.mu.Lock()
	j.lost++
	if len(j.parts)-j.lost >= j.need {
		j.mu.Unlock()
		return
	}
	if !j.end(err) {
		return
	}
	// Its holder may need time to stop, as after any loss. Unlock gives back parts of an Owner: until then they cannot be entered
	// again. One that the Owner holds besides goes on.
	for _, part := range j.parts {
		if part.entries() == 1 {
			part.held().end(err, part.ttl()/8)
		}
	}
}

// end is called with mu held and unlocks it. It reports whether the joint had not ended before. Parts do not change from then on.
func (j *joint) end(err error) bool {
	defer j.mu.Unlock()
	if j.err != nil {
		return false
	}
	j.err = err
	j.cancel(err)
	return true
}

// Close implements span.
func (j *joint) Close(reason error) bool {
	j.mu.Lock()
	return j.end(reason)
}

// Done implements span.
func (j *joint) Done() <-chan struct{} { return j.ctx.Done() }

// Err implements span.
func (j *joint) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err
}

// Valid implements span.
func (j *joint) Valid() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	valid := 0
	for _, part := range j.parts {
		if part.Valid() {
			valid++
		}
	}
	return j.err == nil && valid >= j.need
}

// Deadline implements span: when there are too few parts left unless they are renewed.
func (j *joint) Deadline() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	ends := make([]time.Time, len(j.parts))
	for i, part := range j.parts {
		ends[i] = part.Deadline()
	}
	slices.SortFunc(ends, func(a, b time.Time) int { return b.Compare(a) })
	return ends[j.need-1]
}

// Context implements span.
func (j *joint) Context(parent context.Context) context.Context { return endingWith(parent, j.ctx) }

// unlock gives every part back, once, whether the joint was lost or not.
func (j *joint) unlock(ctx context.Context) (err error) {
	j.mu.Lock()
	first := !j.unlocked
	j.unlocked = true
	held := j.end(ErrNotHeld)
	if first {
		err = each(j.members(), j.need, func(part *Lock) error { return part.Unlock(ctx) })
	}
	if !held {
		return j.Err()
	}
	return err
}

// extend prolongs every part.
func (j *joint) extend(ctx context.Context, d time.Duration) error {
	if err := j.Err(); err != nil {
		return err
	}
	err := each(j.members(), j.need, func(part *Lock) error { return part.Extend(ctx, d) })
	if ended := j.Err(); ended != nil {
		return ended
	}
	return err
}

// members are the parts at this instant.
func (j *joint) members() []*Lock {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.parts)
}

// each calls f for every part at the same time. It returns nil when as many calls as are needed have succeeded, not waiting for the
// rest, or all errors.
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

// giveBackAll unlocks parts of what could not be had as a whole. What fails is retried in the background.
func giveBackAll(ctx context.Context, parts []*Lock) {
	_ = each(parts, len(parts), func(part *Lock) error { return part.Unlock(ctx) })
}

// giveUp gives back a lock that nobody gets, in the background.
func (l *Lock) giveUp() {
	e, entered := l.lease.(*entry)
	if !entered {
		l.end(ErrNotHeld, 0)
	} else if e.Close(ErrNotHeld) && e.hold.leave() {
		e.hold.lock.end(ErrNotHeld, 0)
	}
}

// end ends a lock for a reason and releases it in the background, after some time. Once its Client is being closed, it leaves
// that to Close.
func (l *Lock) end(reason error, after time.Duration) {
	if !l.client().gate.Enter() {
		return
	}
	defer l.client().gate.Leave()
	if !l.lease.Close(reason) {
		return
	}
	l.client().drop(l)
	l.releaseLater(after, false)
}
