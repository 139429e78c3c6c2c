package semaphore

import (
	"context"
	"time"
)

// Kind is a kind of semaphore, as events, holds and waits name it.
type Kind string

// The kinds.
const (
	KindCounting  Kind = "counting"  // CountingSemaphore
	KindSemaphore Kind = "semaphore" // Semaphore
	KindFair      Kind = "fair"      // FairSemaphore
)

// Event is what happened to permits. Context, Kind, Name, Permits and Took are always set; the other fields
// name the hooks that set them.
type Event struct {
	// Context is that of the call for Acquired, Contended and Failed, and for Released of a CountingSemaphore. For
	// Renewed, Lost and Released of a Grant it has the values of the call that acquired the permits, and
	// never ends: the parent of a span of the hold.
	Context context.Context
	Kind    Kind
	Name    string
	Permits int64 // that the event is about

	IDs   []string // Acquired, Renewed, Lost, Released: as Grant.IDs; nil for a CountingSemaphore
	Token int64    // Acquired, Renewed, Lost, Released: as Grant.Token; 0 for a CountingSemaphore

	// Took is how long the call has waited for Acquired, Contended and Failed, how long the call of the
	// watchdog took for Renewed, and how long the permits were held for Lost and Released. For Released of a
	// CountingSemaphore, which does not know for how long, it is how long the release took.
	Took time.Duration

	Err error // Failed, Lost: why
}

// Hooks are functions that are called for what happens to the permits of a Client, for metrics and traces.
// Each may be nil. They run where the event happens, several at a time, and must return soon: Lost and Renewed
// run on the goroutines that renew leases, Contended on the one that asks Redis. They must not use the grant
// or the Client. None is called once Close has returned nil.
//
// Each call of Acquire, TryAcquire and AcquireFunc for 1 or more permits ends in one Acquired or one Failed,
// except those that are refused with a *cogwheel.InvalidError, or made after Close.
//
// Each Acquired of a Semaphore is followed by one Lost or one Released, at the latest by Close. The permits of a
// CountingSemaphore are a bare number: its Released is each call of Release, by any process, that added permits or
// that goes on in the background.
type Hooks struct {
	Acquired  func(Event) // a call got the permits
	Contended func(Event) // a call found too few free permits, once per call; one of the others follows
	Failed    func(Event) // a call ended without the permits: TryAcquire when there are too few, too
	Renewed   func(Event) // the watchdog renewed a grant
	Lost      func(Event) // a grant ended before it was released
	Released  func(Event) // Release or Close released permits; Redis may not have confirmed it
}
