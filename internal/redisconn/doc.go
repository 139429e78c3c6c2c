// Package redisconn sends calls to Redis for packages that must know what happened to each of them.
//
// While go-redis waits for a reply, it ignores the cancellation of the context, and its deadline unless an option is
// set. It repeats a call after a lost reply without a notice. A lock or a permit must know when to give up, and whether
// an earlier copy of a call may still execute. So package calls sends one copy of a call at a time, and
// [MayHaveExecuted] reports whether a failed copy may have executed, or may execute yet. [Dedicated] has separate
// connections for calls without a caller, such as renewals. A table in class.go gives the meaning of each failure.
package redisconn
