// Package calls keeps calls to Redis within bounds, for packages that must know what became of each of them.
//
// go-redis does not look at the cancellation of a context while it waits for a reply, nor at its deadline unless told to, and
// repeats a call after a lost reply without saying so. A lock or a permit has to know both: when to give up, and whether
// an earlier copy of a call may still execute. So each call is sent once at a time, by Retry, which knows; what is done apart
// from callers has connections of its own, by Dedicated; and whoever may talk to Redis is counted by a Gate.
package calls
