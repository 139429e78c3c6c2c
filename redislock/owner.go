package redislock

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
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
	held map[ownedLock]*shared
}

type ownedLock struct {
	client *Client
	kind   *kind
	name   string
}

// shared is a lock of an Owner. The Owner's mu guards count.
type shared struct {
	*held // behind all entries
	owner *Owner
	count int // entries not unlocked yet
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

// reenter returns another entry of a hold of the context's Owner, or nil if there is none.
func (m *Mutex) reenter(ctx context.Context) (part, error) {
	o := ownerOf(ctx)
	if o == nil {
		return nil, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.held[m.owned()]
	if h == nil && m.kind.within != nil {
		h = o.held[ownedLock{m.client(), m.kind.within, m.name}]
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
		if k.client == m.client() && k.name == m.name && k.kind.within == m.kind {
			return true
		}
	}
	return false
}

// register adds a lock that was just granted, and returns what its caller gets. For a nil Owner that is the
// lock itself.
func (o *Owner) register(h *held) part {
	if o == nil {
		return h
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held == nil {
		o.held = make(map[ownedLock]*shared)
	}
	s := &shared{held: h, owner: o, count: 1}
	o.held[h.mutex.owned()] = s
	return s.entry()
}

// owned returns the key of a lock in its Owner. A fair lock is the plain lock of its name.
func (m *Mutex) owned() ownedLock {
	if m.kind == fair {
		return ownedLock{m.client(), plain, m.name}
	}
	return ownedLock{m.client(), m.kind, m.name}
}

// entry returns a new entry of the hold.
func (s *shared) entry() *entry {
	e := &entry{shared: s}
	e.lock.body = e
	return e
}

// lost returns why the lock is no longer held, even if the loss was not announced yet, or nil.
func (s *shared) lost() error {
	if err := s.Err(); err != nil || s.Valid() {
		return err
	}
	return fmt.Errorf("%w: %s, its lease is over", ErrLost, scripts.Quote(s.name()))
}

// leave counts an entry that has ended, and reports whether it was the last.
func (s *shared) leave() bool {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	s.count--
	if s.count > 0 {
		return false
	}
	if key := s.mutex.owned(); s.owner.held[key] == s {
		delete(s.owner.held, key)
	}
	return true
}

func (s *shared) entries() int {
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	return s.count
}

// entry is one Lock of an Owner on a hold. It ends when that Lock is unlocked, or with the hold. It implements part.
type entry struct {
	shared   *shared
	lock     Lock            // for its caller
	end      conventions.End // when the Lock is unlocked, and after done is called also with the hold
	unlocked atomic.Bool
	follow   sync.Once
}

// handle implements body.
func (e *entry) handle() *Lock { return &e.lock }

// known implements body.
func (e *entry) known() *identity { return &e.shared.held.identity }

// leave ends the entry for a reason, unless it was left before. The caller must then call shared.leave.
func (e *entry) leave(reason error) (first bool) {
	if e.unlocked.Swap(true) {
		return false
	}
	e.end.Close(reason)
	return true
}

// unlock implements body. The last entry releases the lock.
func (e *entry) unlock(ctx context.Context) error {
	lost := e.shared.lost()
	reason := lost
	if reason == nil {
		reason = ErrNotHeld
	}
	switch {
	case !e.leave(reason):
		return e.Err()
	case e.shared.leave():
		return named("unlock", e.shared.name(), e.shared.unlock(ctx))
	}
	return lost
}

// extend implements body.
func (e *entry) extend(ctx context.Context, d time.Duration) error {
	if err := e.Err(); err != nil {
		return err
	}
	return e.shared.extend(ctx, d)
}

// Err implements body. An entry that was lost and then unlocked stays lost.
func (e *entry) Err() error {
	if err := e.end.Err(); err != nil {
		return err
	}
	return e.shared.Err()
}

// Valid implements body.
func (e *entry) Valid() bool { return e.end.Valid() && e.shared.Valid() }

// Deadline implements body.
func (e *entry) Deadline() time.Time { return e.shared.Deadline() }

// Done implements body.
func (e *entry) Done() <-chan struct{} {
	e.follow.Do(func() {
		over := e.shared.Context(context.Background())
		context.AfterFunc(over, func() { e.end.Close(e.shared.Err()) })
	})
	return e.end.Done()
}

// Context implements body.
func (e *entry) Context(parent context.Context) context.Context {
	return e.shared.Context(e.end.Context(parent))
}

// abandon implements part.
func (e *entry) abandon() {
	if e.leave(ErrNotHeld) && e.shared.leave() {
		e.shared.abandon()
	}
}

// endPart implements part. A hold that was re-entered is released by Unlock; until then it cannot be re-entered. A hold
// that the Owner also has separately lasts.
func (e *entry) endPart(reason error) {
	if e.shared.entries() == 1 {
		e.shared.endPart(reason)
	}
}
