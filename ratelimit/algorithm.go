package ratelimit

import (
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// algorithm counts the permits of keys. It is immutable; what is known about a key is a snapshot.
type algorithm interface {
	// script decides what encode makes of an ask.
	script() *scripts.Script
	encode(key string, a *ask) scripts.Call
	// decode reads the reply to encode's call. It sets the result of each of the ask's calls.
	decode(a *ask, reply []int64, at reading) (answer, error)
	// fit tells how a request for n permits is served from what is charged; see fitting.
	fit(charged []span, n int64, since time.Duration) fitting
	// skip takes k permits from the front of a span.
	skip(s *span, k int64)
	// limitOf is the limit for deciding without Redis; false if it is not known.
	limitOf(last snapshot) (Limit, bool)
}

// ask is what one script is asked for a key: to decide calls, or to charge permits for waiters.
type ask struct {
	calls   []*call
	runs    []equalRequests
	inOrder bool          // the first request that is denied denies the rest
	coming  int64         // how many of the last requests are for waiters that have not come yet
	ahead   time.Duration // how long before its time a permit may be charged
	back    []span        // charges to take back first
	partial bool          // the one request may be granted in part
	last    snapshot      // what was known before

	members   []string // of a log: one for each request
	perClient bool     // of a log: the scope whose keys the script was given
}

// equalRequests is a number of requests in a row for the same number of permits. A script is told each of
// them once, so that a thousand callers cost it three arguments.
type equalRequests struct{ n, count int64 }

// addRun adds requests to the runs.
func (a *ask) addRun(n, count int64) {
	if last := len(a.runs) - 1; last >= 0 && a.runs[last].n == n {
		a.runs[last].count += count
		return
	}
	a.runs = append(a.runs, equalRequests{n, count})
}

// answer is what a script says.
type answer struct {
	snapshot snapshot
	granted  []int64 // requests, of each run
	spans    []span  // what was charged for waiters
	takenBack,
	exceeding bool // something was taken back; some request was for more than the limit, and so denied for good
}

// snapshot is what one answer of Redis says about the time after it.
type snapshot interface {
	// cachedDenial reports whether n permits cannot be granted yet when the given time has passed since the
	// request was sent, and if so for how much longer, and the denial. It never denies what Redis would
	// grant.
	cachedDenial(n int64, passed time.Duration) (Result, bool)
	// wait is a lower bound of how long total permits take, for waiters in line.
	wait(total int64, passed time.Duration) time.Duration
	// state is what a look says that is made at that time.
	state() Result
}

// decided gives each call its result, in order: of each run the first requests were granted, as many as the
// answer says.
func (a *ask) decided(granted []int64, set func(c *call, granted bool)) {
	calls := a.calls
	for k, r := range a.runs {
		if len(calls) == 0 {
			return // of waiters
		}
		for at, c := range calls[:r.count] {
			set(c, int64(at) < granted[k])
		}
		calls = calls[r.count:]
	}
}
