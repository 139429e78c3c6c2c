package redislock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/contexts"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Owner makes locks reentrant for one task, such as the handling of a request. While an Owner holds a lock, a
// further call for that lock, on the same Client with a context of the Owner, returns another Lock on the same
// hold without asking Redis. The hold ends when each of these Locks is unlocked. To unlock one of them twice
// returns ErrNotHeld and affects no other. A MultiMutex re-enters its parts. A QuorumMutex ignores Owners. The
// zero value is ready for use. An Owner must not be copied.
//
// An Owner is safe for concurrent use. Goroutines that share an Owner count as one task: the lock does not
// exclude them from each other. A call that is already waiting when another call of its Owner gets the lock
// does not join that hold; it waits until the hold has ended.
type Owner struct {
	mu   sync.Mutex
	held map[ownedLock]*hold
}

type ownedLock struct {
	client *Client
	kind   *kind
	name   string
}

// hold is a lock of an Owner. The Owner's mu guards count.
type hold struct {
	owner *Owner
	lock  *Lock // behind all entries
	count int   // entries not unlocked yet
}

type ownerKey struct{}

// ContextWithOwner returns a context whose locks belong to the Owner. The options of a hold are those of the
// call that acquired it. If a hold is lost, re-entering it fails with ErrLost until all its Locks are unlocked;
// then the next call acquires the lock again. With a nil Owner, locks are not reentrant, even if ctx had an
// Owner. ContextWithOwner panics if ctx is nil.
func ContextWithOwner(ctx context.Context, o *Owner) context.Context {
	return context.WithValue(ctx, ownerKey{}, o)
}

func ownerOf(ctx context.Context) *Owner {
	o, _ := ctx.Value(ownerKey{}).(*Owner)
	return o
}

// reenter returns another Lock on a hold of the context's Owner, or nil if there is none.
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
	}
	if err := h.lost(); err != nil {
		return nil, operationError("lock again", m.name, err)
	}
	h.count++
	return h.entry(), nil
}

// readsLocked reports whether the Owner holds the read lock whose writer's side is m.
func (o *Owner) readsLocked(m *Mutex) bool {
	for k := range o.held {
		if k.client == m.client && k.name == m.name && k.kind.within == m.kind {
			return true
		}
	}
	return false
}

// took registers a lock that was just granted, and returns the Lock for the caller. For a nil Owner that is the
// lock itself.
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

// owned returns the key of a lock in its Owner. A fair lock is the plain lock of its name.
func (m *Mutex) owned() ownedLock {
	if m.kind == fair {
		return ownedLock{m.client, plain, m.name}
	}
	return ownedLock{m.client, m.kind, m.name}
}

// entry returns a new Lock on the hold.
func (h *hold) entry() *Lock {
	l := h.lock
	return &Lock{request: l.request, lease: &entry{hold: h}, madeAt: l.madeAt}
}

// lost returns why the lock is no longer held, even if the loss was not announced yet, or nil.
func (h *hold) lost() error {
	if err := h.lock.Err(); err != nil || h.lock.Valid() {
		return err
	}
	return fmt.Errorf("%w: %s, its lease is over", ErrLost, scripts.Quote(h.lock.name()))
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

// entry is the lease of one Lock of an Owner: it ends when that Lock is unlocked, or with the hold.
type entry struct {
	hold *hold

	mu     sync.Mutex      // guards what follows
	err    error           // why the entry ended before the hold
	ctx    context.Context // nil until Done or Context is called
	cancel context.CancelCauseFunc
}

// Close implements lease.
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

// unlock is Lock.Unlock. The last entry releases the lock.
func (e *entry) unlock(ctx context.Context) error {
	lost := e.hold.lost()
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

// Err implements lease. An entry that was lost and then unlocked stays lost.
func (e *entry) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return e.err
	}
	return e.hold.lock.Err()
}

// Valid implements lease.
func (e *entry) Valid() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err == nil && e.hold.lock.Valid()
}

// Deadline implements lease.
func (e *entry) Deadline() time.Time { return e.hold.lock.Deadline() }

// Done implements lease.
func (e *entry) Done() <-chan struct{} { return e.base().Done() }

// Context implements lease.
func (e *entry) Context(parent context.Context) context.Context {
	return contexts.EndingWith(parent, e.base())
}

// base returns a context that ends with the entry. It is created on demand: most entries never need one.
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
