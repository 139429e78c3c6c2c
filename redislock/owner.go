package redislock

import (
	"context"
	"fmt"
	"sync"
)

// Owner makes locks reentrant for one line of work, such as the handling of a request: while it holds a lock, further calls
// with a context that carries it get the same *Lock again, without asking Redis, and as many calls of Unlock give it back. The
// zero value is ready for use; it must not be copied. It is safe for concurrent use.
type Owner struct {
	mu   sync.Mutex
	held map[ownedLock]*Lock
}

type ownedLock struct {
	client *Client
	kind   *kind
	name   string
}

// tenure is how often an owner has locked a Lock. Its mu guards it.
type tenure struct {
	owner *Owner
	times int
}

type ownerKey struct{}

// WithOwner returns a context whose locks belong to the owner. A re-entry into a lock that was lost fails with ErrLost
// until its holder has unlocked it as often as he locked it. Whichever call took the lock decided on its options.
func WithOwner(ctx context.Context, o *Owner) context.Context {
	return context.WithValue(ctx, ownerKey{}, o)
}

func ownerOf(ctx context.Context) *Owner {
	o, _ := ctx.Value(ownerKey{}).(*Owner)
	return o
}

// reenter returns the lock that the context's owner holds already, once more.
func (m *Mutex) reenter(ctx context.Context) (*Lock, error) {
	o := ownerOf(ctx)
	if o == nil {
		return nil, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.held[m.owned()]
	if l == nil && m.kind.within != nil {
		l = o.held[ownedLock{m.client, m.kind.within, m.name}]
	}
	switch {
	case l == nil && o.reads(m):
		return nil, operationError("lock", m.name, ErrUpgrade)
	case l == nil:
		return nil, nil
	case l.Err() != nil:
		return nil, operationError("lock again", m.name, l.Err())
	case !l.Valid():
		return nil, fmt.Errorf("%w: %q, its lease is over", ErrLost, m.name)
	}
	l.tenure.times++
	return l, nil
}

// reads reports whether the owner has a smaller part of what m stands for; o.mu is held.
func (o *Owner) reads(m *Mutex) bool {
	for k := range o.held {
		if k.client == m.client && k.name == m.name && k.kind.within == m.kind {
			return true
		}
	}
	return false
}

// took notes a lock that was just granted. A nil Owner has none.
func (o *Owner) took(l *Lock) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held == nil {
		o.held = make(map[ownedLock]*Lock)
	}
	l.tenure = &tenure{o, 1}
	o.held[l.mutex.owned()] = l
}

// owned is what an owner knows the lock by. A fair one is the plain one of that name, for which he would wait himself.
func (m *Mutex) owned() ownedLock {
	if m.kind == fair {
		return ownedLock{m.client, plain, m.name}
	}
	return ownedLock{m.client, m.kind, m.name}
}

// owner is whose lock it is, nil if nobody's.
func (l *Lock) owner() *Owner {
	if l.tenure == nil {
		return nil
	}
	return l.tenure.owner
}

// holds is how often the lock was locked and not unlocked: 1 without an owner.
func (l *Lock) holds() int {
	o := l.owner()
	if o == nil {
		return 1
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return l.tenure.times
}

// gaveBack counts an Unlock and reports whether it was the last.
func (l *Lock) gaveBack() bool {
	o := l.owner()
	if o == nil {
		return true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	l.tenure.times--
	if l.tenure.times > 0 {
		return false
	}
	if key := l.mutex.owned(); o.held[key] == l {
		delete(o.held, key)
	}
	return true
}
