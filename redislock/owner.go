package redislock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Owner makes locks reentrant for one line of work, such as the handling of a request: while it holds a lock, further calls with a
// context that carries it get a Lock of their own on the same hold, without asking Redis. The hold is given back when each of them was
// unlocked, once; unlocking one of them twice is ErrNotHeld and touches no other. The zero value is ready for use; it must not be copied.
//
// An Owner is safe for concurrent use, and goroutines that share one are one line of work: it does not keep them from running at
// the same time under the same lock. Calls of theirs that wait already when another one gets the lock go on waiting for it.
type Owner struct {
	mu   sync.Mutex
	held map[ownedLock]*hold
}

type ownedLock struct {
	client *Client
	kind   *kind
	name   string
}

// hold is a lock that an Owner has, and how many of the Locks on it are still to be unlocked. The Owner's mu guards it.
type hold struct {
	owner *Owner
	lock  *Lock // what all of them stand for
	count int
}

type ownerKey struct{}

// WithOwner returns a context whose locks belong to the owner. A re-entry into a lock that was lost fails with ErrLost until each of the
// Locks on it was unlocked. Whichever call took the lock decided on its options.
func WithOwner(ctx context.Context, o *Owner) context.Context {
	return context.WithValue(ctx, ownerKey{}, o)
}

func ownerOf(ctx context.Context) *Owner {
	o, _ := ctx.Value(ownerKey{}).(*Owner)
	return o
}

// reenter returns another Lock on what the context's owner holds already, or nil if it does not.
func (m *Mutex) reenter(ctx context.Context) (*Lock, error) {
	o := ownerOf(ctx)
	if o == nil {
		return nil, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.held[m.owned()]
	if h == nil && m.kind.within != nil {
		h = o.held[ownedLock{m.client, m.kind.within, m.name}]
	}
	switch {
	case h == nil && o.readsLocked(m):
		return nil, operationError("lock", m.name, ErrUpgrade)
	case h == nil:
		return nil, nil
	case h.lock.Err() != nil:
		return nil, operationError("lock again", m.name, h.lock.Err())
	case !h.lock.Valid():
		return nil, fmt.Errorf("%w: %s, its lease is over", ErrLost, scripts.Quote(m.name))
	}
	h.count++
	return h.entry(), nil
}

// readsLocked reports whether the owner has a smaller part of what m stands for.
func (o *Owner) readsLocked(m *Mutex) bool {
	for k := range o.held {
		if k.client == m.client && k.name == m.name && k.kind.within == m.kind {
			return true
		}
	}
	return false
}

// took notes a lock that was just granted and returns what its caller gets. A nil Owner has none: then it is the lock itself.
func (o *Owner) took(l *Lock) *Lock {
	if o == nil {
		return l
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held == nil {
		o.held = make(map[ownedLock]*hold)
	}
	h := &hold{owner: o, lock: l, count: 1}
	o.held[l.mutex.owned()] = h
	return h.entry()
}

// owned is what an owner knows the lock by. A fair one is the plain one of that name, for which the owner would wait itself.
func (m *Mutex) owned() ownedLock {
	if m.kind == fair {
		return ownedLock{m.client, plain, m.name}
	}
	return ownedLock{m.client, m.kind, m.name}
}

// entry is a Lock on the hold.
func (h *hold) entry() *Lock {
	l := h.lock
	return &Lock{request: l.request, lease: &entry{hold: h}, token: l.token, since: l.since}
}

// leave counts an entry that has ended, and reports whether it was the last.
func (h *hold) leave() bool {
	h.owner.mu.Lock()
	defer h.owner.mu.Unlock()
	h.count--
	if h.count > 0 {
		return false
	}
	if key := h.lock.mutex.owned(); h.owner.held[key] == h {
		delete(h.owner.held, key)
	}
	return true
}

func (h *hold) entries() int {
	h.owner.mu.Lock()
	defer h.owner.mu.Unlock()
	return h.count
}

// entry is how long a Lock of an Owner lasts: until it is unlocked, and no longer than the hold.
type entry struct {
	hold *hold

	mu     sync.Mutex
	err    error           // why it has ended before the hold
	ctx    context.Context // nil until somebody asks for Done or Context
	cancel context.CancelCauseFunc
}

// Close implements span.
func (e *entry) Close(reason error) bool {
	e.mu.Lock()
	if e.err != nil {
		e.mu.Unlock()
		return false
	}
	e.err = reason
	cancel := e.cancel
	e.mu.Unlock()
	if cancel != nil {
		cancel(reason)
	}
	return true
}

// unlock is Lock.Unlock. The last entry releases the lock; one that is lost says so.
func (e *entry) unlock(ctx context.Context) error {
	lost := e.hold.lock.Err()
	reason := lost
	if reason == nil {
		reason = ErrNotHeld
	}
	switch {
	case !e.Close(reason):
		return e.Err()
	case e.hold.leave():
		return e.hold.lock.Unlock(ctx)
	}
	return lost
}

// Err implements span. An entry that was lost and then unlocked stays lost.
func (e *entry) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return e.err
	}
	return e.hold.lock.Err()
}

// Valid implements span.
func (e *entry) Valid() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err == nil && e.hold.lock.Valid()
}

// Deadline implements span.
func (e *entry) Deadline() time.Time { return e.hold.lock.Deadline() }

// Done implements span.
func (e *entry) Done() <-chan struct{} { return e.base().Done() }

// Context implements span.
func (e *entry) Context(parent context.Context) context.Context { return endingWith(parent, e.base()) }

// base ends with the entry. It is made on demand: most entries are never asked for a channel.
func (e *entry) base() context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx == nil {
		var own context.Context
		own, e.cancel = context.WithCancelCause(context.Background())
		e.ctx = e.hold.lock.lease.Context(own)
		if e.err != nil {
			e.cancel(e.err)
		}
	}
	return e.ctx
}

// endingWith returns a context that ends with parent, or with base and its cause. It is released with either.
func endingWith(parent, base context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	if base.Err() != nil {
		cancel(context.Cause(base))
		return ctx
	}
	stop := context.AfterFunc(base, func() { cancel(context.Cause(base)) })
	context.AfterFunc(ctx, func() { stop() })
	return ctx
}
