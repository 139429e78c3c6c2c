package scripts

import "regexp"

// The scripts of string locks use the key of most other libraries: a string with the id of the holder, set by SET NX PX
// and compared before it is renewed or removed. An id begins with random bytes: some libraries take over a value that
// begins with a token of theirs.
var (
	StringAcquire = declare("string_acquire") // takes the lock if it is free
	StringRelease = declare("string_release") // releases it if the id holds it
	StringRenew   = declare("string_renew")   // renews any number of string locks
	StringForce   = declare("string_force")   // frees the lock of any holder, and notifies one of this library
	StringLeave   = declare("string_leave")   // takes a waiter out of the line of a lock
)

// ofHold matches what include/foreign_holder.lua takes for an id of this library.
var ofHold = regexp.MustCompile(`^[0-9A-Fa-f-]{36}:[0-9]`)

// OfHold reports whether the value of a string lock is an id of a holder or waiter of this library, rather than what
// another library has set.
func OfHold(id string) bool { return ofHold.MatchString(id) }
