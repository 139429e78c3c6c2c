package redislock

import (
	"context"
	"time"
)

// Kind is a kind of lock, as events, holds and waits name it.
type Kind string

// The kinds. A MultiMutex is not one of them: its parts are locks of KindMutex.
const (
	KindMutex  Kind = "mutex"
	KindFair   Kind = "fair"
	KindRead   Kind = "read"  // the readers' side of an RWMutex
	KindWrite  Kind = "write" // the writer's side
	KindQuorum Kind = "quorum"
)

// Event is what happened to a lock. Kind, Name, Context and Took are always set; the other fields name the
// hooks that set them.
type Event struct {
	// Context is that of the call for Acquired, Contended and Failed. For Renewed, Lost and Released it has
	// the values of the call that acquired the lock, and never ends: the parent of a span of the hold.
	Context context.Context
	Kind    Kind
	Name    string

	// ID is the hold for Acquired, Renewed, Lost and Released, as Holder.ID and Hold.ID; Renewed of a Quorum
	// has the ID on one server. A hand-over within the process passes the ID on to the next hold, whose
	// Acquired may come before the Released of the former.
	ID    string
	Token int64 // Acquired, Renewed, Lost, Released: the fencing token, 0 without one

	// Took is how long the call has waited for Acquired, Contended and Failed, how long the call of the
	// watchdog took for Renewed, and how long the lock was held for Lost and Released.
	Took time.Duration

	TTL time.Duration // Contended: as LockedError.TTL
	Err error         // Failed, Lost: why
}

// Hooks are functions that are called for what happens to the locks of a Client or a Quorum, for metrics and
// traces. Each may be nil. They run where the event happens, several at a time, must not panic, and must
// return soon: Lost and Renewed run on the goroutines that renew leases. They must not use the lock or the
// Client. None is called once Close has returned nil.
//
// Each call of Lock, TryLock and LockFunc, also by Do, ends in one Acquired or one Failed. There are three
// exceptions, which have neither: a call that is refused with a *cogwheel.InvalidError, a call after Close,
// and a call that an Owner re-enters a hold by. A call for a MultiMutex is one for each of its parts.
// Downgrade is the end of the writer's hold and a call for the reader's.
//
// Each Acquired is followed by one Lost or one Released, at the latest by Close. Locks of an Owner on one hold
// are one hold.
type Hooks struct {
	Acquired  func(Event) // a call got the lock
	Contended func(Event) // a call found the lock held; once per call, then Acquired or Failed follows
	Failed    func(Event) // a call ended without the lock, such as TryLock of a lock that is held
	Renewed   func(Event) // the watchdog renewed the lock; a Quorum's on one of its servers
	Lost      func(Event) // the lock ended before it was unlocked
	Released  func(Event) // Unlock or Close released the lock; Redis may not have confirmed it
}
