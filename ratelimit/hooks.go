package ratelimit

import (
	"context"
	"time"
)

// Kind is a kind of limiter in an Event.
type Kind string

// The kinds.
const (
	KindLimiter       Kind = "limiter"
	KindStoredLimiter Kind = "stored"
	KindAll           Kind = "all" // several limits in one step
)

// Event describes a decision, or a change of a breaker. For a change of a breaker (Down and Up), only Context,
// Node, Took and Err are set.
type Event struct {
	Context context.Context // of the call; for Down and Up, context.Background()
	Kind    Kind
	Name    string // prefix of a Limiter, or name of a StoredLimiter; for an All, as "user and service"
	Key     string // for a Limiter, as given; clients may have chosen it, so do not use it as a label of a metric
	N       int64  // permits of the request; for an All, requests

	// Result is the decision. Its Parts have the names and keys of an All. For Failed, only its Source is set. For
	// Reserve and the calls that wait, only Allowed, Granted and Source are set, unless Shadow is set. For Denied,
	// Allowed is false also if Shadow is set.
	Result Result
	// Shadow: the Limiter, or all parts of the All, have WithShadow, so the request passed whatever the decision was.
	Shadow bool
	Waited bool          // the call was Wait, WaitN or WaitFunc
	Took   time.Duration // how long the call took, without the delay of a reservation; Up: how long Redis was down
	Err    error         // Failed: the error of the call; Down: the cause
	Node   string        // Down and Up: the address of the node; empty if it is not known
}

// Hooks are functions that a Client calls for its decisions, for metrics and traces. Each may be nil. They run
// on goroutines of callers, of the Client and of its wheel, several at a time, and must return soon. They must
// not use the Client.
//
// Each call of Allow, AllowUpTo, Reserve and Wait, and of their variants, for 1 or more permits ends in one
// Allowed, Denied or Failed. Failed also has the calls that are refused with a *cogwheel.InvalidError, such as those
// of an invalid limit, and those made after Close. Calls with a nil context and calls of Peek end in none. A wait that
// Close ends is reported before Close returns nil.
//
// For each node, Down and Up alternate. A panic of a hook on a goroutine of the Client is logged; on the
// goroutine of a caller it goes on to the caller.
type Hooks struct {
	Allowed func(Event) // permits were granted; Result.Source tells by whom
	Denied  func(Event) // the request was denied; without Event.Shadow, Reserve and calls that wait fail instead
	Failed  func(Event) // there was an error, such as ErrExceedsLimit or ErrUnavailable
	Down    func(Event) // a node does not answer; from now on the policy decides for its keys
	Up      func(Event) // the node answers again, or its keys have moved to another node
}
