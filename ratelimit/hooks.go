package ratelimit

import (
	"context"
	"time"
)

// Kind is a kind of limiter, as events name it.
type Kind string

// The kinds.
const (
	KindLimiter       Kind = "limiter"
	KindStoredLimiter Kind = "stored"
	KindAll           Kind = "all" // several limits in one step
)

// Event is a decision, or a change of the breaker. Of the latter, only Context, Took and Err are set.
type Event struct {
	Context context.Context // of the call; context.Background() for Down and Up
	Kind    Kind
	Name    string // prefix of a Limiter, or name of a StoredLimiter; of an All, as "user and service"
	Key     string // of a Limiter, as it was given; it may come from strangers, so it is no label of a metric
	N       int64  // permits asked for; of an All, requests

	// Result is the decision: for Failed, only its Source is set. Of a wait or a reservation, only Allowed,
	// Granted and Source are.
	Result Result
	Waited bool          // by Wait, WaitN or WaitFunc
	Took   time.Duration // the call, not the delay of a reservation; Up: how long Redis was down
	Err    error         // Failed: what the call returned; Down: why
}

// Hooks are functions that are called for what a Client decides, for metrics and traces. Each may be nil.
// They run on goroutines of callers, of the Client and of its wheel, several at a time, and must return soon.
// They must not use the Client.
//
// Each call of Allow, AllowUpTo, Reserve and Wait, and of their variants, for 1 or more permits ends in one
// Allowed, Denied or Failed. There are three exceptions, which have none: a call that is refused with an
// *cogwheel.InvalidError, one that returns ErrClosed without having waited, and one that asks for no permits.
// Peek is not such a call. No wait is reported once Close has returned nil.
//
// Down and Up take turns.
type Hooks struct {
	Allowed func(Event) // permits were granted; Result.Source tells where
	Denied  func(Event) // the call returned a denial; waits and reservations return none
	Failed  func(Event) // the call returned an error, such as ErrExceedsLimit or ErrUnavailable
	Down    func(Event) // Redis does not answer: from now on the policy decides
	Up      func(Event) // Redis answers again
}
