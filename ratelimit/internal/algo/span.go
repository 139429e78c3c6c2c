package algo

import "time"

// Reading is one reading of a server's clock. Its time lies between the instants at which a script was sent and
// its reply came, by the Client's clock, which counts from when the Client was made.
type Reading struct {
	server    int64 // us
	Sent, Got time.Duration
}

// notBefore returns an instant by which the server's clock has certainly reached us.
func (r Reading) notBefore(us int64) time.Duration { return r.Got + micros(us-r.server) }

// NotAfter returns an instant at which the server's clock has certainly not passed us.
func (r Reading) NotAfter(us int64) time.Duration { return r.Sent + micros(us-r.server) }

// Span is a run of prepaid permits: charged to a key and not used yet. Each of them has a time in which the
// limit allows its use: not before its place in the limit's order has come, and not after another burst could
// follow it. A request uses permits at the first instant at which all of them can be used and the request
// exists, or at most latePlaces later. So no stretch of time holds more than the limit, whatever becomes of the
// waiters for which permits were charged.
type Span struct {
	N int64

	// For windows and logs: when all of them can be used, by the Client's clock.
	From, Until time.Duration

	// For GCRA: places of unit permits each, which follow each other from start on, on the server's clock. A place can
	// be used from a whole burst before its end until it begins, by a waiter for as many permits, or in part for fewer.
	Start GCRATime
	Unit  int64 // permits of each of its places, which a waiter for as many takes
	ahead bool  // it was charged before it could be used
	At    Reading

	// What Redis needs to give a part of the charge back. For GCRA: an instant that tells the state from others, and
	// us given back since. For windows: an instant, and for sliding windows the number of the window.
	Period, returned, index int64

	Added int64  // permits that were ever charged before
	Entry string // for a log: the entry, which waiters use as a whole
	stay  int64  // for a log: permits of the entry that are not given back
}

// Fitting is how a request is served from the front of the prepaid permits.
type Fitting struct {
	Drop    int64         // permits at the front whose waiters have gone; if set, the other fields mean nothing
	Missing int64         // permits that must be charged first
	At      time.Duration // if none are missing: when the request can have them
}
