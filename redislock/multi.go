package redislock

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/cogwheel-go/cogwheel/internal/hold"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// multi is the kind of a lock with parts. Requests are made only for the parts.
var multi = &kind{}

// MultiMutex is a lock on several names at once: it is held when all of them are held. It has no state of its
// own and is safe for concurrent use.
type MultiMutex struct {
	client *Client
	names  []string // sorted; parts are taken in this order, so that no two callers wait for each other
	parts  []*Mutex
	err    error
}

// MultiMutex returns a lock on all the given names: at least one, and none twice. It does not talk to Redis. Its parts
// are the locks that Mutex returns for the names, so it also excludes holders of single names, as Redisson's
// getMultiLock does. In a cluster the names may be on different nodes. The options are those of Mutex and apply to each
// part, except WithFencing and WithJavaFencing, which are refused because each name has separate tokens, and
// WithMinHold, which is refused too. If a name or an option is invalid, Err and all methods return a
// *cogwheel.InvalidError.
func (c *Client) MultiMutex(names []string, opts ...LockOption) *MultiMutex {
	m := &MultiMutex{client: c, names: slices.Sorted(slices.Values(names))}
	if len(m.names) == 0 {
		m.err = argument.Error("names", "none", "at least one is needed")
	}
	for i, name := range m.names {
		part := c.Mutex(name, opts...)
		switch {
		case m.err != nil:
		case part.Err() != nil:
			m.err = part.Err()
		case i > 0 && name == m.names[i-1]:
			m.err = argument.Error("names", scripts.Quote(name), "given more than once")
		case part.config.fenced:
			m.err = argument.Error("option", "WithFencing", "each name has tokens of its own")
		case part.config.minHold > 0:
			m.err = errMinHold
		}
		m.parts = append(m.parts, part)
	}
	return m
}

// Err returns the *cogwheel.InvalidError of an invalid name or option, or nil. All other methods return it too.
func (m *MultiMutex) Err() error { return m.err }

// Names returns a sorted copy of the names.
func (m *MultiMutex) Names() []string { return slices.Clone(m.names) }

// Lock takes all parts, one after the other in the order of their names, and waits for each. It renews the
// parts that it has while it waits. Once it has the first part, it goes on through an outage, as Mutex.Lock does
// when Redis has found the lock held. If a part cannot be taken, Lock releases the others and returns the error of
// Mutex.Lock; if ctx has ended, it does so in the background.
//
// The Name of the Lock is the names, joined by commas. The Lock is lost as soon as one part is lost: Done is
// closed, Err names the part, and the other parts are released an eighth of their lease later. Its Deadline is
// the earliest Deadline of its parts.
func (m *MultiMutex) Lock(ctx context.Context) (*Lock, error) {
	return m.lockAll(ctx, func(a *multiAcquisition) (part, error) { return a.next().lock(ctx, a.begun()) })
}

// TryLock takes all parts if they are free, and otherwise none: it takes one after the other, and releases
// those that it has if one cannot be taken. The error is the error for that part. TryLock blocks for one round
// trip for each name, and one for the release, at most until ctx ends.
func (m *MultiMutex) TryLock(ctx context.Context) (*Lock, error) {
	return m.lockAll(ctx, func(a *multiAcquisition) (part, error) { return a.next().tryLock(ctx) })
}

// LockFunc is Lock without blocking, as Mutex.LockFunc is. If cancel ends the wait, the parts that were taken
// are released before f is called.
func (m *MultiMutex) LockFunc(ctx context.Context, f func(*Lock, error)) (cancel func()) {
	argument.MustCall(f == nil)
	gate := &m.client.gate
	if err := admit(ctx, gate, m.name(), m.err); err != nil {
		go m.client.monitor.callback(func() { f(nil, err) })
		return func() {}
	}
	ctx, cancel = context.WithCancel(ctx)
	a := multiAcquisition{multi: m, unlock: unlockAll}
	var next func()
	next = func() {
		a.next().lockFunc(ctx, a.begun(), func(p part, err error) {
			l, more, err := a.add(ctx, p, err)
			if more {
				next()
				return
			}
			cancel()
			gate.Leave()
			m.client.monitor.callback(func() { f(l, err) })
		})
	}
	next()
	return cancel
}

// Do calls f while it holds the lock, as Mutex.Do does.
func (m *MultiMutex) Do(ctx context.Context, f func(context.Context) error) error {
	return do(ctx, m.client, m.Lock, f)
}

// FromContext returns the Lock of a MultiMutex of the same names whose Do or Context made ctx, or nil, as
// Mutex.FromContext does. The Mutex of one of the names does not return it.
func (m *MultiMutex) FromContext(ctx context.Context) *Lock {
	return hold.From[Lock](ctx, hold.Name{Sort: several, Name: m.name()})
}

func (m *MultiMutex) lockAll(ctx context.Context, one func(*multiAcquisition) (part, error)) (*Lock, error) {
	if m.err != nil {
		return nil, m.err
	}
	a := multiAcquisition{multi: m, unlock: leaveAll}
	for {
		p, err := one(&a)
		if l, more, err := a.add(ctx, p, err); !more {
			return l, err
		}
	}
}

// name returns the names, joined by commas.
func (m *MultiMutex) name() string { return strings.Join(m.names, ",") }

// multiAcquisition is a call for all parts. It takes one after the other.
type multiAcquisition struct {
	multi  *MultiMutex
	unlock func(context.Context, []part) // releases parts
	parts  []part
	lost   int // the number of times that parts were lost before all were taken
}

// next returns the part to take next.
func (a *multiAcquisition) next() *Mutex { return a.multi.parts[len(a.parts)] }

// begun reports whether Redis has answered the call: then an outage does not end it.
func (a *multiAcquisition) begun() bool { return len(a.parts) > 0 || a.lost > 0 }

// add records the result for a part, and reports whether there are more parts to take. If not, it returns the
// result of the whole call. After an error it releases the parts that were taken, for which it blocks for a
// round trip.
func (a *multiAcquisition) add(ctx context.Context, p part, err error) (l *Lock, more bool, _ error) {
	m := a.multi
	if err != nil {
		a.unlock(ctx, a.parts)
		return nil, false, err
	}
	if a.parts = append(a.parts, p); len(a.parts) < len(m.parts) {
		return nil, true, nil
	}
	if made := m.client.newComposite(m.name(), len(a.parts), a.parts, nil); made.Valid() {
		made.start()
		return made.handle(), false, nil
	}
	a.unlock(ctx, a.parts) // the first leases ended before the last part was taken
	a.parts, a.lost = nil, a.lost+1
	if a.lost < maxSlowReplies {
		return nil, true, nil
	}
	return nil, false, operationError("lock", m.name(), errors.New("parts were lost before all had been taken"))
}
