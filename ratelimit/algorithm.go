package ratelimit

import (
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// algorithm counts the permits of keys. It is immutable; the last known state of a key is a snapshot.
type algorithm interface {
	// script executes the calls that encode builds from an ask.
	script() *scripts.Script
	encode(key string, a *ask) scripts.Call
	// decode reads the reply to a call of encode, and sets the results of the calls in the ask.
	decode(a *ask, reply []int64, at reading) (answer, error)
	// fit serves a request for n permits from the prepaid permits; see fitting.
	fit(charged []span, n int64, since time.Duration) fitting
	// skip takes k permits from the front of a span.
	skip(s *span, k int64)
	// limitOf returns the limit for decisions without Redis, or false if it is not known.
	limitOf(last snapshot) (algoLimit, bool)
	traits() traits

	// route returns the Redis key that decides the node. label returns the name of the limit in errors.
	route(key string) string
	label(key string) string
	// follow records the scope that an error of the script names, and reports whether it names one. Such a
	// script has done nothing, and must be sent again with the keys of that scope.
	follow(err error) bool
	setPerClient(on bool)
}

const (
	keepUnused = 10 * time.Millisecond // as long as a line that uses the limit up has between two scripts
	keepWindow = time.Second           // as long as a denial is trusted
)

// traits describe how an algorithm treats the permits of waiters.
type traits struct {
	entries     bool          // a charge has an id, and is for one request that uses all of it
	atOnce      bool          // permits are charged only when they can be used
	canGiveBack bool          // unused permits can be given back
	reserves    bool          // permits can be charged long before they can be used, and given back in any order
	keep        time.Duration // how long unused permits stay, for later waiters, when the line is empty
}

// oneKey is the common part of algorithms that count one key in one scope.
type oneKey struct{}

func (oneKey) route(key string) string { return key }
func (oneKey) label(key string) string { return key }
func (oneKey) follow(error) bool       { return false }
func (oneKey) setPerClient(bool)       {}

// oneLimit is the common part of algorithms whose limit is in the code.
type oneLimit struct {
	oneKey
	limit algoLimit
}

func (o *oneLimit) limitOf(snapshot) (algoLimit, bool) { return o.limit, true }

// combinable is an algorithm that can be part of a combination.
type combinable interface {
	algorithm
	// part returns the limit, and partCost the cost of n permits, as arguments for the script of combinations.
	part() []any
	partCost(n int64) []any
	// readPart reads the state of a part to which n permits were just charged, its state before, and the charge.
	readPart(r *replyReader, now, n int64, stamped bool) (snapshot, replayed, span)
}

// limiterAlgorithms describe the algorithms of Limiter, in the order of the constants of ratelimit.Algorithm.
var limiterAlgorithms = [...]struct {
	option   string // the name of the constant, for errors
	text     string // for String
	word     string // its part of keys in Redis; GCRA has none
	validate func(algoLimit) error
	of       func(algoLimit) combinable // for a valid limit
}{
	{
		"GCRA", "GCRA", "", algoLimit.validate,
		func(l algoLimit) combinable { return newGCRA(l) },
	},
	{
		"FixedWindow", "fixed window", "window", algoLimit.validateWindow,
		func(l algoLimit) combinable { return &window{oneLimit{limit: l}} },
	},
	{
		"SlidingWindow", "sliding window", "sliding", algoLimit.validateSliding,
		func(l algoLimit) combinable { return &sliding{oneLimit{limit: l}} },
	},
}

// decision is the decision on one request.
type decision struct {
	Allowed    bool
	Granted    int64         // permits taken
	Limit      int64         // permits that can be used at once
	Remaining  int64         // permits that can be used right after the decision
	RetryAfter time.Duration // until the same request can be granted
	ResetAfter time.Duration // until the limit is unused again
	Parts      []decision    // for a combination: of each part
	Entry      string        // for a log: the entry that was granted
	Exceeds    bool          // the request is for more than the limit
}

// ask is the content of one script for a key: calls to decide, or permits to charge for waiters.
type ask struct {
	callers int // those who want a decision, each of one request; none for waiters
	runs    []equalRequests
	inOrder bool          // the first denied request denies the rest
	coming  int64         // the number of requests at the end that are for waiters yet to come
	ahead   time.Duration // how early a permit may be charged before it can be used
	holds   bool          // the process has charged permits: for the first of its requests ahead is the bound
	stamped bool          // a settlement can give a part of the one charge back; for windows it is not made ahead
	back    []span        // charges to take back first
	debt    int64         // permits to charge whatever the state is,
	most    int64         // by which the state may exceed a full burst then
	partial bool          // the one request may be granted in part
	last    snapshot      // the last known state before the script
	now     time.Duration // when the script is made, by the Client's clock

	members   []string // for a log: one for each request
	perClient bool     // for a log: the scope of the keys that the script was given
}

// equalRequests is a number of consecutive requests for the same number of permits. A script gets each run
// once, so a thousand callers cost three arguments.
type equalRequests struct {
	n, count int64
	within   time.Duration // for reservations: the bound of the first request, if it is not that of the ask
	alone    bool          // within is the deadline of the request: if it is hopeless, those behind it are not denied
}

// addRun adds requests to the runs.
func (a *ask) addRun(n, count int64) { a.add(equalRequests{n: n, count: count}) }

func (a *ask) add(r equalRequests) {
	if last := len(a.runs) - 1; last >= 0 && !r.alone {
		if like := a.runs[last]; like.n == r.n && like.within == r.within && !like.alone {
			a.runs[last].count += r.count
			return
		}
	}
	a.runs = append(a.runs, r)
}

// permits returns the permits of the requests that the script granted.
func (a *ask) permits(granted []int64) (n int64) {
	for k, r := range a.runs {
		n += max(0, granted[k]) * r.n
	}
	return n
}

// needsSpans reports whether the caller uses the spans of what is charged.
func (a *ask) needsSpans() bool { return a.callers == 0 || a.stamped }

// appendRuns appends the runs in the form that the scripts of windows take.
func (a *ask) appendRuns(args []any) []any {
	for _, r := range a.runs {
		if r.n == 0 {
			args = append(args, 0, 0)
		} else {
			args = append(args, r.n, r.count)
		}
	}
	switch {
	case a.stamped:
		return append(args, 2)
	case a.inOrder || a.settles():
		return append(args, flag(a.inOrder))
	}
	return args
}

// settles reports whether a script gives charges back or books a debt.
func (a *ask) settles() bool { return len(a.back) > 0 || a.debt > 0 }

// readSettled reads what the script of a window has given back or booked.
func (a *ask) readSettled(r *replyReader, got *answer) {
	if a.settles() {
		n := r.next(0, exact)
		got.takenBack = len(a.back) > 0 && n > 0
		got.booked = min(n, a.debt)
	}
}

// answer is the decision of a script.
type answer struct {
	snapshot  snapshot
	decisions []decision // one for each caller
	granted   []int64    // granted requests of each run
	spans     []span     // permits charged for waiters
	period    int64      // of the state, if its charges can be given back; see span
	booked    int64      // permits of a debt that were charged
	takenBack,
	exceeding bool // a charge was taken back, or some request was for more than the limit and so denied for good
}

// snapshot is the state of a key at one reply of Redis, from which later states follow.
type snapshot interface {
	// cachedDenial reports whether n permits are certain to be denied when the given time has passed since the
	// request was sent, and returns the denial with the time left. It never denies what Redis would grant.
	cachedDenial(n int64, passed time.Duration) (decision, bool)
	// wait returns a lower bound of the time until total permits can be used, for waiters in line.
	wait(total int64, passed time.Duration) time.Duration
	// state returns the state as the result of a look at that time.
	state() decision
	// keep returns how long from now on the snapshot is useful apart from its denials; down means that Redis is down.
	keep(now time.Duration, down bool) time.Duration
}

// replayed is the state of a key as the requests of one script saw it, one after the other.
type replayed interface {
	charge(n int64)
	// result returns the result of a denial of n permits after the given time.
	result(n int64, passed time.Duration) decision
}

// replayOne returns the result of a request for n permits. n = 0 asks when one request could be granted, which
// costs that many permits.
func replayOne(s replayed, n, one int64, granted bool) decision {
	if granted {
		s.charge(n)
		r := s.result(n, 0)
		r.Allowed, r.Granted, r.RetryAfter = true, n, 0
		return r
	}
	r := s.result(max(n, one), 0)
	r.Allowed = r.RetryAfter == 0
	return r
}

// inPieces makes the result of a request for n permits, which Redis denied, a denial if what is free is in pieces.
func inPieces(s replayed, n int64, r *decision) {
	if g, ok := s.(*gcraSnapshot); ok && g.pieces > 0 {
		r.RetryAfter, r.Remaining = g.behind(n), min(r.Remaining, n-1)
		r.Allowed = r.RetryAfter == 0
	}
}

// replay returns the decision for each caller. granted is the number of requests of each run that the script granted:
// the first ones.
func (a *ask) replay(granted []int64, s replayed) []decision {
	if a.callers == 0 {
		return nil
	}
	all := make([]decision, 0, a.callers)
	for k, r := range a.runs {
		for at := range r.count {
			granted := at < granted[k]
			d := replayOne(s, r.n, 1, granted)
			if !granted && r.n > 0 {
				inPieces(s, r.n, &d)
			}
			d.Allowed = granted || r.n == 0 && d.Remaining > 0
			all = append(all, d)
		}
	}
	return all
}
