package algo

import (
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Algorithm counts the permits of keys. The last known state of a key is a Snapshot; only that of a
// log knows something besides, the scope.
type Algorithm interface {
	// Script executes the calls that Encode builds from an Ask.
	Script() *scripts.Script
	Encode(key string, a *Ask) scripts.Call
	// Decode reads the reply to a call of Encode.
	Decode(a *Ask, reply []int64, at Reading) (Answer, error)
	// Fit serves a request for n permits from the prepaid permits; see Fitting.
	Fit(charged []Span, n int64, since time.Duration) Fitting
	// Skip takes k permits from the front of a span.
	Skip(s *Span, k int64)
	// LimitOf returns the limit for decisions without Redis, or false if it is not known.
	LimitOf(last Snapshot) (Limit, bool)
	Traits() Traits

	// Route returns the Redis key that decides the node. Label returns the name of the limit in errors.
	Route(key string) string
	Label(key string) string
	// Follow records the scope that an error of the script names, and reports whether it names one. Such a
	// script has done nothing, and must be sent again with the keys of that scope.
	Follow(err error) bool
	SetPerClient(on bool)
}

const (
	keepUnused = 10 * time.Millisecond // as long as a line that uses the limit up has between two scripts
	keepWindow = time.Second           // as long as a denial is trusted
)

// Traits describe how an algorithm treats the permits of waiters.
type Traits struct {
	Entries     bool          // a charge has an id, and is for one request that uses all of it
	AtOnce      bool          // permits are charged only when they can be used
	CanGiveBack bool          // unused permits can be given back
	Reserves    bool          // permits can be charged long before they can be used, and given back in any order
	Keep        time.Duration // how long unused permits stay, for later waiters, when the line is empty
}

// oneKey is the common part of algorithms that count one key in one scope.
type oneKey struct{}

func (oneKey) Route(key string) string { return key }
func (oneKey) Label(key string) string { return key }
func (oneKey) Follow(error) bool       { return false }
func (oneKey) SetPerClient(bool)       {}

// oneLimit is the common part of algorithms whose limit is in the code.
type oneLimit struct {
	oneKey
	limit Limit
}

func (o *oneLimit) LimitOf(Snapshot) (Limit, bool) { return o.limit, true }

// Combinable is an algorithm that can be part of a combination.
type Combinable interface {
	Algorithm
	// part returns the limit, and partCost the cost of n permits, as arguments for the script of combinations.
	part() []any
	partCost(n int64) []any
	// readPart reads the state of a part to which n permits were just charged, its state before, and the charge.
	readPart(r *replyReader, now, n int64, stamped bool) (Snapshot, replayed, Span)
}

// Kinds describe the algorithms of Limiter, in the order of the constants of ratelimit.Algorithm.
var Kinds = [...]struct {
	Text     string // for String
	Word     string // its part of keys in Redis; GCRA has none
	Validate func(Limit) error
	New      func(Limit) Combinable // for a valid limit
}{
	{
		"GCRA", "", Limit.validate,
		func(l Limit) Combinable { return newGCRA(l) },
	},
	{
		"fixed window", "window", Limit.ValidateWindow,
		func(l Limit) Combinable { return &window{oneLimit{limit: l}} },
	},
	{
		"sliding window", "sliding", Limit.validateSliding,
		func(l Limit) Combinable { return &sliding{oneLimit{limit: l}} },
	},
}

// Source is a ratelimit.Source.
type Source uint8

// The sources, in the order of the constants of ratelimit.Source.
const (
	ByRedis Source = iota
	ByProcess
	ByPolicy
)

// Decision is the decision on one request.
type Decision struct {
	Allowed    bool
	Granted    int64         // permits taken
	Limit      int64         // permits that can be used at once
	Remaining  int64         // permits that can be used right after the decision
	RetryAfter time.Duration // until the same request can be granted
	ResetAfter time.Duration // until the limit is unused again
	Parts      []Decision    // for a combination: of each part
	Entry      string        // for a log: the entry that was granted
	Exceeds    bool          // the request is for more than the limit
	Source     Source
}

// Ask is the content of one script for a key: requests, a settlement, or for a line of waiters both; none of them for a
// probe. The script takes back and charges first.
type Ask struct {
	Request
	Settlement
	Known

	Room *[]Decision // for the decisions of the answer; nil if they are to be allocated

	members   []string // for a log: one for each request
	perClient bool     // for a log: the scope of the keys that the script was given
}

// Known is what the process knew of the key when the script was made. A log is counted anew if that is too long ago,
// and GCRA tells by it which calls may share a script.
type Known struct {
	Last Snapshot      // the last known state
	Now  time.Duration // when the script is made, by the Client's clock
}

// Settlement is what is charged or given back whatever the requests are.
type Settlement struct {
	Back []Span // charges to take back
	Debt int64  // permits to charge whatever the state is,
	Most int64  // by which the state may exceed a full burst then
}

// Settles reports whether a script gives charges back or books a debt.
func (s *Settlement) Settles() bool { return len(s.Back) > 0 || s.Debt > 0 }

// Request is what a script decides. The zero one only looks.
//
// Callers that do not wait are decided each by itself. All else is InOrder: waiters, and the one request of ToSettle
// and of Reserve.
type Request struct {
	Callers int // those who want a decision, each of one request; none for waiters
	Runs    []Run
	InOrder bool          // the first denied request denies the rest
	Ahead   time.Duration // if InOrder: how early a permit may be charged before it can be used
	Stamped bool          // a settlement can give a part of the one charge back; for windows it is not made ahead
	Holds   bool          // GCRA, waiters: they hold places, so that ahead is the bound of the first request too
	Coming  int64         // a log, waiters: the number of requests at the end that are for waiters yet to come
	Partial bool          // a log: the one request may be granted in part
}

// ToSettle asks for n permits at once, of which a settlement can give a part back.
func ToSettle(n int64) Request {
	return Request{Callers: 1, Runs: []Run{{N: n, Count: 1}}, InOrder: true, Stamped: true}
}

// Reserve asks for n permits that can be used after some time at most, and be given back. Nobody gets a decision.
func Reserve(n int64, ahead time.Duration) Request {
	return Request{Runs: []Run{{N: n, Count: 1}}, InOrder: true, Stamped: true, Ahead: ahead}
}

// UpTo asks for as many of n permits as are available: for a log by one entry, which the script makes smaller, else one
// by one, which costs the script no more.
func UpTo(n int64, log bool) Request {
	if log {
		return Request{Runs: []Run{{N: n, Count: 1}}, Partial: true}
	}
	return Request{Runs: []Run{{N: 1, Count: n}}}
}

// Run is a number of consecutive requests for the same number of permits. A script gets each run
// once, so a thousand callers cost three arguments.
type Run struct {
	N, Count int64
	Within   time.Duration // for reservations: the bound of the first request, if it is not that of the ask
	Alone    bool          // within is the deadline of the request: if it is hopeless, those behind it are not denied
}

// AddRun adds requests to the runs.
func (r *Request) AddRun(n, count int64) { r.Add(Run{N: n, Count: count}) }

// Add adds a run.
func (r *Request) Add(run Run) {
	if last := len(r.Runs) - 1; last >= 0 && !run.Alone {
		if like := r.Runs[last]; like.N == run.N && like.Within == run.Within && !like.Alone {
			r.Runs[last].Count += run.Count
			return
		}
	}
	r.Runs = append(r.Runs, run)
}

// permits returns the permits of the requests that the script granted.
func (a *Ask) permits(granted []int64) (n int64) {
	for k, r := range a.Runs {
		n += max(0, granted[k]) * r.N
	}
	return n
}

// needsSpans reports whether the caller uses the spans of what is charged.
func (a *Ask) needsSpans() bool { return a.Callers == 0 || a.Stamped }

// appendRuns appends the runs in the form that the scripts of windows take.
func (a *Ask) appendRuns(args []any) []any {
	for _, r := range a.Runs {
		if r.N == 0 {
			args = append(args, 0, 0)
		} else {
			args = append(args, r.N, r.Count)
		}
	}
	switch {
	case a.Stamped:
		return append(args, 2)
	case a.InOrder || a.Settles():
		return append(args, Flag(a.InOrder))
	}
	return args
}

// readSettled reads what the script of a window has given back or booked.
func (a *Ask) readSettled(r *replyReader, got *Answer) {
	if a.Settles() {
		n := r.next(0, exact)
		got.TakenBack = len(a.Back) > 0 && n > 0
		got.Booked = min(n, a.Debt)
	}
}

// Answer is the decision of a script.
type Answer struct {
	Snapshot  Snapshot
	Decisions []Decision // one for each caller
	Granted   []int64    // granted requests of each run
	Spans     []Span     // permits charged for waiters
	Period    int64      // of the state, if its charges can be given back; see span
	Booked    int64      // permits of a debt that were charged
	TakenBack,
	Exceeding bool // a charge was taken back, or some request was for more than the limit and so denied for good
}

// Snapshot is the state of a key at one reply of Redis, from which later states follow.
type Snapshot interface {
	// CachedDenial reports whether n permits are certain to be denied when the given time has passed since the
	// request was sent, and returns the denial with the time left. It never denies what Redis would grant.
	CachedDenial(n int64, passed time.Duration) (Decision, bool)
	// Wait returns a lower bound of the time until total permits can be used, for waiters in line.
	Wait(total int64, passed time.Duration) time.Duration
	// State returns the state as the result of a look at that time.
	State() Decision
	// Keep returns how long from now on the snapshot is useful apart from its denials; down means that Redis is down.
	Keep(now time.Duration, down bool) time.Duration
}

// replayed is the state of a key as the requests of one script saw it, one after the other.
type replayed interface {
	charge(n int64)
	// granted returns the state after a grant that was charged. The caller adds what was granted.
	granted() Decision
	// result returns the result of a denial of n permits after the given time.
	result(n int64, passed time.Duration) Decision
}

// replayOne returns the result of a request for n permits. n = 0 asks when one request could be granted, which
// costs that many permits.
func replayOne(s replayed, n, one int64, granted bool) Decision {
	if granted {
		s.charge(n)
		r := s.granted()
		r.Allowed, r.Granted = true, n
		return r
	}
	r := s.result(max(n, one), 0)
	r.Allowed = r.RetryAfter == 0
	return r
}

// inPieces makes the result of a request for n permits, which Redis denied, a denial if what is free is in pieces.
func inPieces(s replayed, n int64, r *Decision) {
	if g, ok := s.(*gcraSnapshot); ok && g.pieces > 0 {
		r.RetryAfter, r.Remaining = g.behind(n), min(r.Remaining, n-1)
		r.Allowed = r.RetryAfter == 0
	}
}

// room returns an empty slice for decisions.
func (a *Ask) room() []Decision {
	if a.Room == nil {
		return nil
	}
	return (*a.Room)[:0]
}

// replay returns the decision for each caller. granted is the number of requests of each run that the script granted:
// the first ones.
func (a *Ask) replay(granted []int64, s replayed) []Decision {
	if a.Callers == 0 {
		return nil
	}
	all := slices.Grow(a.room(), a.Callers)
	for k, r := range a.Runs {
		for at := range r.Count {
			granted := at < granted[k]
			d := replayOne(s, r.N, 1, granted)
			if !granted && r.N > 0 {
				inPieces(s, r.N, &d)
			}
			d.Allowed = granted || r.N == 0 && d.Remaining > 0
			all = append(all, d)
		}
	}
	return all
}
