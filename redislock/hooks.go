package redislock

import (
	"context"
	"time"
)

// Kind is a kind of lock in an Event, a Hold or a Wait.
type Kind string

// The kinds. A MultiMutex has none: its parts are locks of KindMutex or KindString.
const (
	KindMutex  Kind = "mutex"
	KindFair   Kind = "fair"
	KindRead   Kind = "read"  // the readers' side of an RWMutex
	KindWrite  Kind = "write" // the writer's side
	KindQuorum Kind = "quorum"
	KindString Kind = "string" // a Mutex with WithStringKey
)

// Event describes something that happened to a lock. Context, Kind, Name and Took are always set. The comment
// of each other field lists the hooks that set it.
type Event struct {
	// Context is the context of the call for Acquired, Contended and Failed. For Renewed, Lost and Released it
	// has the values of the call that acquired the lock and never ends, so it can be the parent of a span of
	// the hold.
	Context context.Context
	Kind    Kind
	Name    string

	// ID identifies the hold for Acquired, Renewed, Lost and Released, as Holder.ID and Hold.ID do. For Renewed
	// of a Quorum it is the ID on one server. A handoff within the process passes the ID on to the next hold,
	// whose Acquired may come before the Released of the previous hold.
	ID    string
	Token int64 // Acquired, Renewed, Lost, Released: as Lock.Token

	// Took is, for Acquired, Contended and Failed, how long the call has waited; for Renewed, how long the
	// renewing call took; for Lost and Released, how long the lock was held.
	Took time.Duration

	TTL time.Duration // Contended: as LockedError.TTL
	Err error         // Failed, Lost: the cause
}

// Hooks are functions that a Client or a Quorum calls when something happens to a lock, for metrics and traces.
// Each may be nil. Several may run at a time, each on a goroutine of its own for which the Client waits. They must
// return soon: Lost and Renewed hold up renewals, and Renewed the end of its hold. They must not use the lock or the
// Client, or stop its wheel. None is called after Close has returned nil. A panic of a hook is logged.
//
// Each call of Lock, TryLock and LockFunc, also by Do and Lead, ends in one Acquired or one Failed. Calls that
// are refused with a *cogwheel.InvalidError, calls after Close, and calls that re-enter a hold of an Owner end
// in neither. A call for a MultiMutex counts as one call for each part that it asks for. A Downgrade ends the
// hold of the writer and counts as a call for the hold of the reader.
//
// Each Acquired is followed by one Lost or one Released, at the latest by Close. Between them, one at a time, are the
// calls of Renewed for the hold, except those for a Quorum. A renewal that is answered while Acquired runs, or after
// the end of the hold, has none. The Locks of an Owner on one hold count as one hold.
type Hooks struct {
	Acquired  func(Event) // a call got the lock
	Contended func(Event) // a call found the lock held; once per call, then Acquired or Failed follows
	Failed    func(Event) // a call ended without the lock, also a TryLock of a lock that is held
	Renewed   func(Event) // the watchdog renewed the lock; for a Quorum, on one of its servers
	Lost      func(Event) // the lock ended before it was unlocked
	Released  func(Event) // Unlock or Close released the lock; Redis may not have confirmed it
}
