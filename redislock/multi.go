package redislock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// multi is the kind of a lock made of several. It is never asked for: its parts are.
var multi = &kind{label: "multi"}

// MultiMutex is the lock of several names at once: it is held when all of them are. It holds no state of its own and is
// safe for concurrent use.
type MultiMutex struct {
	client *Client
	names  []string // in the order in which they are taken, so that no two callers wait for each other
	parts  []*Mutex
	err    error
}

// MultiMutex returns the lock of all these names, at least one, none twice. It does not talk to Redis. Each of them is the lock
// that Mutex returns for it, so holders of the whole and of single names exclude each other, as they do with Redisson's
// getMultiLock. In a cluster the names may be on different nodes. Options are those of Mutex and apply to each part, except that
// WithFencing is refused: each name has tokens of its own. A bad name or option is reported by Err and by every method as an
// *InvalidError.
func (c *Client) MultiMutex(names []string, opts ...LockOption) *MultiMutex {
	m := &MultiMutex{client: c, names: slices.Sorted(slices.Values(names))}
	if len(m.names) == 0 {
		m.err = argument.Error("names", "none", "at least one is needed")
	}
	for i, name := range m.names {
		part := c.Mutex(name, opts...)
		switch {
		case m.err != nil:
		case part.err != nil:
			m.err = part.err
		case i > 0 && name == m.names[i-1]:
			m.err = argument.Error("names", scripts.Quote(name), "given more than once")
		case part.config.fenced:
			m.err = argument.Error("option", "WithFencing", "each name has tokens of its own")
		}
		m.parts = append(m.parts, part)
	}
	return m
}

// Err returns the *InvalidError of a bad name or option, which every method returns too, or nil.
func (m *MultiMutex) Err() error { return m.err }

// Names returns the names, sorted.
func (m *MultiMutex) Names() []string { return slices.Clone(m.names) }

// Lock takes all locks, one after the other in the order of their names, waiting for each; those that it has are renewed meanwhile. If
// one cannot be had, Lock releases the others and returns the error that Mutex.Lock returned for it.
//
// The Lock's Name is the names, joined by commas. It is lost as soon as one of its parts is: Done is closed, Err tells which, and
// the other parts are released an eighth of their lease later. Its Deadline is that of the part that ends first.
func (m *MultiMutex) Lock(ctx context.Context) (*Lock, error) { return m.take(ctx, (*Mutex).Lock) }

// TryLock takes all locks if they are free, and none otherwise. The error is that of the first, in order of names, that could not be had.
// It blocks for one round trip for each.
func (m *MultiMutex) TryLock(ctx context.Context) (*Lock, error) {
	return m.take(ctx, (*Mutex).TryLock)
}

// LockFunc is Lock without a goroutine while it waits: it returns at once, and f is called exactly once, on a goroutine of its
// own, with what Lock would have returned. It waits in the line of one name at a time, as Lock does. cancel ends the wait, unless it is
// decided already: then the parts that it has are released, and f gets an error that matches context.Canceled. cancel may be called any
// number of times. LockFunc panics if f is nil.
func (m *MultiMutex) LockFunc(ctx context.Context, f func(*Lock, error)) (cancel func()) {
	mustCall(f == nil)
	gate := &m.client.gate
	if err := admit(ctx, gate, m.name(), m.err); err != nil {
		go f(nil, err)
		return func() {}
	}
	ctx, cancel = context.WithCancel(ctx)
	g := gathering{multi: m}
	var next func()
	next = func() {
		g.turn().LockFunc(ctx, func(part *Lock, err error) {
			l, more, err := g.add(ctx, part, err)
			if more {
				next()
				return
			}
			cancel()
			gate.Leave()
			f(l, err)
		})
	}
	next()
	return cancel
}

// Do runs f while holding the lock, as Mutex.Do does.
func (m *MultiMutex) Do(ctx context.Context, f func(context.Context) error) error {
	return do(ctx, m.client.logger, m.Lock, f)
}

func (m *MultiMutex) take(ctx context.Context, one func(*Mutex, context.Context) (*Lock, error)) (*Lock, error) {
	if m.err != nil {
		return nil, m.err
	}
	g := gathering{multi: m}
	for {
		part, err := one(g.turn(), ctx)
		if l, more, err := g.add(ctx, part, err); !more {
			return l, err
		}
	}
}

// name is that of the whole.
func (m *MultiMutex) name() string { return strings.Join(m.names, ",") }

// gathering is a call for all the locks, which takes one after the other.
type gathering struct {
	multi *MultiMutex
	parts []*Lock
	lost  int // how often parts were lost before all could be had
}

// turn is the part to take next.
func (g *gathering) turn() *Mutex { return g.multi.parts[len(g.parts)] }

// add takes in what the call for a part has returned, and reports whether there are more to take. If not, it returns what the whole
// call does, and keeps nothing after an error; it then blocks for a round trip.
func (g *gathering) add(ctx context.Context, part *Lock, err error) (l *Lock, more bool, _ error) {
	m := g.multi
	if err != nil {
		giveBackAll(ctx, g.parts)
		return nil, false, err
	}
	if g.parts = append(g.parts, part); len(g.parts) < len(m.parts) {
		return nil, true, nil
	}
	if slices.IndexFunc(g.parts, func(part *Lock) bool { return !part.Valid() }) < 0 {
		return m.client.join(m.name(), newJoint(len(g.parts), g.parts)), false, nil
	}
	giveBackAll(ctx, g.parts) // what was not renewed is over before the last one could be had
	g.parts, g.lost = nil, g.lost+1
	if g.lost < slowTries {
		return nil, true, nil
	}
	return nil, false, operationError("lock", m.name(), errors.New("parts were lost before all could be had"))
}

// join makes a Lock of a joint.
func (c *Client) join(name string, j *joint) *Lock {
	return &Lock{request: request{mutex: &Mutex{client: c, kind: multi, name: name}}, lease: j, since: time.Since(c.origin)}
}
