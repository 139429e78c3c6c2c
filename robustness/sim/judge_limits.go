package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/robustness/check"
)

// Units of the algorithms.
const (
	bucketRounding = int64(20 * time.Microsecond)
	windowRounding = int64(3 * time.Millisecond)
	limitTimeout   = int64(250 * time.Millisecond)  // of a ratelimit.Client
	keptFor        = int64(1100 * time.Millisecond) // a process keeps the permits of waiters who left
	limitPatience  = int64(2 * time.Second)         // until processes know what others have changed
)

// judgeLimits replays each limit.
func (w *world) judgeLimits() (faults []check.Fault) {
	for i := range w.Objects {
		o := &w.Objects[i]
		if !isLimit(o.Kind) || w.has(failoverAlive) { // what the old primary charged is not known
			continue
		}
		found := w.judgeLimit(i, o)
		for _, f := range found {
			f.Object = o.Name
			faults = append(faults, f)
		}
	}
	return faults
}

// about returns what the server executed about a limit, what that charged, and when it was reset.
func (w *world) about(o *Object) (about []execution, charged []*check.Ask, resets []int64) {
	key := w.admin.limiterOf(o, o.Limit, 1).key
	other := func(e execution) bool { return !e.ran || e.refused || !slices.Contains(e.keys, key) }
	about, charged = slices.DeleteFunc(slices.Clone(w.server.executed), other), []*check.Ask{}
	resets = slices.Clone(w.server.lost)
	reserved := make(map[string][]*check.Ask)
	for _, e := range about {
		charges := e.charges()
		charged = append(charged, charges...)
		if o.Kind == windowKind && len(charges) > 0 {
			reserved[e.charged()] = append(reserved[e.charged()], charges...)
		}
		for _, part := range e.givenBack() {
			for _, a := range slices.Backward(reserved[part.of]) {
				n := min(part.n, a.Left(e.at))
				part.n -= n
				a.Back = append(a.Back, check.Back{At: e.at, N: n})
			}
		}
		if slices.Contains([]string{"del", "unlink", "rate_set"}, e.name) {
			resets = append(resets, e.at)
		}
	}
	slices.Sort(resets)
	return about, charged, resets
}

// definition returns the definition of a kind of limit, and how much earlier the server may grant.
func (w *world) definition(kind string) (define func() oracle.Algorithm, rounding int64) {
	switch kind {
	case windowKind:
		return func() oracle.Algorithm {
			return check.Either{new(oracle.Windows), &oracle.Windows{Early: windowRounding}}
		}, windowRounding
	case slidingKind:
		epoch := w.start.UnixNano()
		return func() oracle.Algorithm { return &oracle.SlidingWindow{Epoch: epoch} }, windowRounding
	case storedKind:
		return func() oracle.Algorithm { return new(oracle.SlidingLog) }, windowRounding
	}
	return bucket, bucketRounding
}

func (w *world) judgeLimit(i int, o *Object) []check.Fault {
	define, rounding := w.definition(o.Kind)
	about, charged, resets := w.about(o)
	faults := judgeExactly(o.Kind, about, w.server.lost)
	if w.has("server's clock steps") { // a window ends sooner or later than it would
		faults = nil
	}
	var asks []*check.Ask
	settled := slices.Clone(resets)
	for _, c := range w.limits {
		if c.object == i && o.Kind == storedKind { // elsewhere a limit is part of each call
			settled = append(settled, c.from)
		}
	}
	kept := keptFor
	if len(w.Faults) > 0 { // a reply may be late
		kept += int64(w.slack() + w.outages())
	}
	byLink, debts := make(map[int][]*check.Ask), make(map[int][]*check.Ask)
	byPolicy := make(map[shareOf][]*check.Ask)
	for _, r := range w.asked {
		if r.object != i || r.reset {
			continue
		}
		r.Behind = slices.ContainsFunc(w.asked, func(o *request) bool {
			return o != r && o.object == i && o.link == r.link && o.Waits && !r.Waits &&
				o.Called <= r.Return && o.Return >= r.Called
		})
		r.Least, r.Slack = r.Limit, 2*int64(w.Most)
		if len(w.Faults) > 0 { // an answer may have been on its way for long
			r.Slack += int64(w.slack() + w.outages())
		}
		r.Behind = r.Behind || o.Kind == windowKind && r.besideAReturn(about)
		if r.source == ratelimit.SourceDegraded.String() {
			// Which limit a process knows of those that are stored is not known if they change.
			if r.Granted && w.Policy == "share" && (o.Kind != storedKind || len(w.limits) == 0) {
				of := shareOf{r.process, r.Limit}
				byPolicy[of] = append(byPolicy[of], r.share())
			}
			if r.Unsure = true; r.Granted {
				r.Granted = false
			}
		}
		if asks = append(asks, &r.Ask); r.Granted {
			used := r.Ask
			used.N = r.used
			byLink[r.link] = append(byLink[r.link], &used)
		}
		booked, all := r.settlements(o.Kind, about)
		debts[r.link], asks = append(debts[r.link], booked...), append(asks, all...)
	}
	for link, granted := range byLink {
		charges, given := chargesOf(o.Kind, about, link)
		faults = append(faults, judgeCharges(o.Kind, granted, charges, given, kept, rounding)...)
		faults = append(faults, judgeDebts(o.Kind, debts[link], about, link)...)
	}
	if o.Kind == storedKind {
		rates(asks, about)
	}
	if !w.has("server's clock steps") { // what is left of a wait is unknown then
		patience := limitPatience + 20*int64(w.Most)
		if len(w.Faults) > 0 {
			patience += int64(w.slack() + w.outages())
		}
		faults = append(faults, check.Denials(define, asks, charged, resets, settled, rounding, patience)...)
	}
	faults = append(faults, w.judgePolicy(i)...)
	return append(faults, judgeShares(byPolicy)...)
}

// bucket allows for what scripts round. A request for a place before others is judged by what it takes beyond the burst
// then: how much later it would be free says nothing about that.
func bucket() oracle.Algorithm { return &oracle.Bucket{Early: bucketRounding} }

// shareOf is the part of a limit that a process has to itself.
type shareOf struct {
	process int
	limit   oracle.Limit
}

// judgeShares replays what a policy granted in each process.
func judgeShares(byPolicy map[shareOf][]*check.Ask) (faults []check.Fault) {
	for of, asks := range byPolicy {
		for _, f := range check.Replay(bucket, asks, nil, nil, bucketRounding) {
			f.Promise, f.Detail = "a share is kept", fmt.Sprintf("process %d: %s", of.process, f.Detail)
			faults = append(faults, f)
		}
	}
	return faults
}

// judgePolicy finds requests that a policy decided, or that failed as in an outage, in a run without one: a
// process that stood still, a client that is refused for reasons of its own, and a key that is refused are none.
func (w *world) judgePolicy(object int) (faults []check.Fault) {
	for _, f := range w.Faults {
		k := faultOf(f.Kind)
		// A process that stands still for longer than go-redis waits for an answer cannot tell that from an outage.
		still := k.Name == "process stands still" && f.For < w.Timeout
		if k.pool { // see judgeHealth
			return nil
		}
		own := k.private || k.mistake || k.object && f.Object != object || still
		if !own || k.ends || k.loses {
			return nil
		}
	}
	for _, r := range w.asked {
		unavailable := errors.Is(r.err, ratelimit.ErrUnavailable)
		degraded := r.source == ratelimit.SourceDegraded.String()
		// Its own deadline may come before the answer, or while the process stands still: then only its context
		// runs on.
		still := func(s span) bool {
			return s.fault.Name == "process stands still" && s.From <= r.Leaves && r.Leaves <= s.To
		}
		hurried := r.Leaves > 0 && (r.Leaves-r.Called < limitTimeout || slices.ContainsFunc(w.spans, still))
		if r.object == object && !hurried && (unavailable || degraded) {
			faults = append(faults, check.Fault{Promise: "a policy decides in outages only", Detail: fmt.Sprintf(
				"request %d, at %v: by the policy %v, %v", r.ID, time.Duration(r.Called), degraded, r.err)})
		}
	}
	return faults
}

// share is the request of one process that has its part of the limit to itself.
func (r *request) share() *check.Ask {
	a := r.Ask
	a.Instants = []int64{a.Return, a.Called} // a waiter gets its permits when they are there
	a.Limit.Per *= shares
	a.Limit.Burst = max(1, a.Limit.Burst/shares)
	return &a
}

// rates gives requests of a stored limit the limits that were in force while they were under way: callers do not
// know them.
func rates(asks []*check.Ask, about []execution) {
	for _, a := range asks {
		a.Limit, a.Least = oracle.Limit{}, oracle.Limit{}
		for _, e := range about {
			if e.rate == 0 || e.at > a.Return {
				continue
			}
			limit := oracle.Limit{Rate: e.rate, Per: e.per, Burst: e.rate}
			if e.at < a.Called || a.Limit.Rate == 0 {
				a.Limit, a.Least = limit, limit
			}
			if limit.Rate > a.Limit.Rate {
				a.Limit = limit
			}
			if limit.Rate < a.Least.Rate {
				a.Least = limit
			}
		}
	}
}

// outages is how long all faults of the schedule last. Each lost message costs a timeout.
func (w *world) outages() (sum time.Duration) {
	for _, f := range w.Faults {
		sum += f.For + f.After.Abs() + time.Duration(f.N)*w.Timeout
	}
	return sum
}
