// Package redisconn sends calls to Redis for packages that must know what happened to each of them.
//
// go-redis does not look at the cancellation of a context while it waits for a reply, nor at its deadline
// unless told to, and repeats a call after a lost reply without saying so. A lock or a permit must know both:
// when to give up, and whether an earlier copy of a call may still execute. So package calls sends
// one copy of a call at a time, and [MayHaveExecuted] says of a failed one whether it may have executed, or may
// execute yet. [Dedicated] has connections of its own for calls without a caller, such as renewals. One table,
// in class.go, says what a failed call means.
package redisconn
