package semaphore

import (
	"context"
	"time"
)

// Kind is a kind of semaphore in an Event, a Hold or a Wait.
type Kind string

// The kinds.
const (
	KindCounting  Kind = "counting"  // CountingSemaphore
	KindSemaphore Kind = "semaphore" // Semaphore
	KindFair      Kind = "fair"      // FairSemaphore
)

// Event describes something that happened to permits. Context, Kind, Name, Permits and Took are always set.
// The comment of each other field lists the hooks that set it.
type Event struct {
	// Context is the context of the call for Acquired, Contended and Failed, and for Released of a
	// CountingSemaphore. For Renewed, Lost and Released of a Grant it has the values of the call that
	// acquired the permits and never ends, so it can be the parent of a span of the hold.
	Context context.Context
	Kind    Kind
	Name    string
	Permits int64 // the number of permits of the call or the grant

	IDs   []string // Acquired, Renewed, Lost, Released: as Grant.IDs; nil for a CountingSemaphore
	Token int64    // Acquired, Renewed, Lost, Released: as Grant.Token; 0 for a CountingSemaphore

	// Took is, for Acquired, Contended and Failed, how long the call has waited; for Renewed, how long the
	// renewing call took; for Lost and Released, how long the permits were held. For Released of a
	// CountingSemaphore, which does not know that time, it is how long the release took.
	Took time.Duration

	Err error // Failed, Lost: the cause
}

// Hooks are functions that a Client calls when something happens to permits, for metrics and traces. Each may
// be nil. Several may run at a time, each on a goroutine of its own for which the Client waits. They must return soon:
// Lost and Renewed hold up renewals, Renewed the end of its grant, and Contended replies of Redis. They must not use
// the grant or the Client, or stop its wheel. None is called after Close has returned nil. A panic of a hook is logged.
//
// Each call of Acquire, TryAcquire and AcquireFunc, also by Do, for 1 or more permits ends in one Acquired or
// one Failed. Calls that are refused with a *cogwheel.InvalidError, or made after Close, end in neither.
//
// Each Acquired of a Semaphore is followed by one Lost or one Released, at the latest by Close. Between them, one at a
// time, are the calls of Renewed for the grant. A renewal that is answered while Acquired runs, or after the end of the
// grant, has none. The permits of a CountingSemaphore have no holder: there, Released is each call of Release that
// added permits or that continues in the background.
type Hooks struct {
	Acquired  func(Event) // a call got the permits
	Contended func(Event) // a call found too few free permits; once per call, before its Acquired or Failed
	Failed    func(Event) // a call ended without permits, also a TryAcquire that found too few
	Renewed   func(Event) // a renewal in the background prolonged a grant, not Extend
	Lost      func(Event) // a grant ended before it was released
	Released  func(Event) // Release or Close released permits; Redis may not have confirmed it
}
