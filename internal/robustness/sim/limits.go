package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/robustness/check"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// The kinds of limits.
const (
	bucketKind  = "GCRA limit"
	windowKind  = "window limit"
	slidingKind = "sliding limit"
	storedKind  = "stored limit"
)

var limitKinds = []string{bucketKind, windowKind, slidingKind, storedKind}

// prefix is that of the keys of limits.
const prefix = "sim"

// shares is the number of processes that LocalShare is told.
const shares = 4

func (w *world) policy() ratelimit.Policy {
	switch w.Policy {
	case "open":
		return ratelimit.FailOpen()
	case "share":
		return ratelimit.LocalShare(shares)
	default:
		return ratelimit.FailClosed()
	}
}

// limiter is what the operations need of a limiter.
type limiter struct {
	allow func(context.Context) (ratelimit.Result, error)
	wait  func(context.Context) error
	reset func(context.Context) error
	set   func(context.Context) error // nil where the limit is part of each call
	key   string
}

// limiterOf returns the limiter of an object under a limit, for n permits.
func (p *process) limiterOf(o *Object, limit Limit, n int64) limiter {
	l := ratelimit.Limit{Rate: limit.Rate, Per: limit.Per, Burst: limit.Burst}
	if o.Kind == storedKind {
		s := p.limits.StoredLimiter(o.Name)
		return limiter{
			allow: func(ctx context.Context) (ratelimit.Result, error) { return s.AllowN(ctx, n) },
			wait:  func(ctx context.Context) error { return s.WaitN(ctx, n) },
			reset: func(ctx context.Context) error { return s.SetRate(ctx, l) },
			set: func(ctx context.Context) error {
				return s.SetRate(ctx, l, ratelimit.WithState())
			},
			key: o.Name,
		}
	}
	algorithm := map[string]ratelimit.Algorithm{
		bucketKind: ratelimit.GCRA, windowKind: ratelimit.FixedWindow, slidingKind: ratelimit.SlidingWindow,
	}[o.Kind]
	k := p.limits.Limiter(prefix, l, ratelimit.WithAlgorithm(algorithm))
	return limiter{
		allow: func(ctx context.Context) (ratelimit.Result, error) { return k.AllowN(ctx, o.Name, n) },
		wait:  func(ctx context.Context) error { return k.WaitN(ctx, o.Name, n) },
		reset: func(ctx context.Context) error { return k.Reset(ctx, o.Name) },
		key:   k.RedisKey(o.Name),
	}
}

func (w *world) prepareLimit(ctx context.Context, p *process, object int) error {
	o := &w.Objects[object]
	if o.Kind != storedKind {
		return nil
	}
	return p.limiterOf(o, w.limitNow(object), 1).reset(ctx)
}

// limitNow returns the present limit of an object.
func (w *world) limitNow(object int) Limit {
	w.mu.Lock()
	defer w.mu.Unlock()
	limit := w.Objects[object].Limit
	for _, c := range w.limits {
		if c.object == object {
			limit = c.limit
		}
	}
	return limit
}

// change is another limit of an object. It was made at some instant between from and to.
type change struct {
	object   int
	limit    Limit
	from, to int64
}

// request is a request for permits of a limit.
type request struct {
	check.Ask
	object, link int
	process      int
	source       string
	err          error
	reset        bool
}

// resultKey is the key of a *ratelimit.Result in the context of a call: a wait returns only an error.
type resultKey struct{}

func noteResult(e ratelimit.Event) {
	if r, ok := e.Context.Value(resultKey{}).(*ratelimit.Result); ok {
		*r = e.Result
	}
}

// ask carries out an operation about a limit.
func (w *world) ask(ctx context.Context, p *process, o Op) {
	limit := w.limitNow(o.Object)
	if o.Action == Change {
		limit = o.Limit
	}
	object := &w.Objects[o.Object]
	l := p.limiterOf(object, limit, o.N)
	r := &request{object: o.Object, link: p.link.number, process: p.number}
	r.By = r.link
	r.N, r.Rate, r.Waits = o.N, check.Rate{Permits: limit.Rate, Per: limit.Per, Burst: limit.Burst}, o.Action == Take
	w.mu.Lock()
	w.ids++
	r.ID, r.Called = w.ids, w.stampLocked()
	r.Return, r.Unsure = forever, true // until it returns, which those of a process that is killed do not
	w.asked = append(w.asked, r)
	if o.Patience > 0 {
		r.Leaves = r.Called + int64(o.Patience)
	}
	w.traceLocked(r.Called, fmt.Sprintf("process %d: %s #%d %s n=%d", p.number, o.Action, r.ID, object.Name, o.N))
	changes := o.Action == Change || o.Action == Reset && l.set != nil // which sets the limit as well
	if changes {
		w.limits = append(w.limits, change{o.Object, limit, r.Called, forever})
	}
	w.mu.Unlock()
	var result ratelimit.Result
	err := w.call(context.WithValue(ctx, resultKey{}, &result), l, o, &result)
	if !p.awake() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	r.Return, r.err, r.source = w.stampLocked(), err, result.Source.String()
	if changes {
		for i, c := range w.limits {
			if c.from == r.Called && err == nil {
				w.limits[i].to = r.Return
			}
		}
	}
	r.reset = o.Action == Change || o.Action == Reset
	r.Granted = err == nil && (r.Waits || result.Allowed)
	r.Denied = err == nil && !r.Granted ||
		errors.Is(err, ratelimit.ErrWouldExceedDeadline) || errors.Is(err, ratelimit.ErrExceedsLimit)
	r.Retry = result.RetryAfter
	r.Unsure = !r.Granted && !r.Denied && !(r.Waits && ctx.Err() != nil && errors.Is(err, ctx.Err()))
	w.traceLocked(r.Return, fmt.Sprintf("process %d: #%d returned: granted %v by %s, retry after %v, error %v",
		p.number, r.ID, r.Granted, r.source, r.Retry, err))
}

const forever = int64(1) << 61

// call makes the call of an operation.
func (w *world) call(ctx context.Context, l limiter, o Op, result *ratelimit.Result) (err error) {
	defer recovered(&err)
	switch o.Action {
	case Take:
		return l.wait(ctx)
	case Try:
		*result, err = l.allow(ctx)
		return err
	case Reset:
		return l.reset(ctx)
	default:
		if l.set != nil {
			return l.set(ctx)
		}
		return nil
	}
}

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
		if !isLimit(o.Kind) {
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
	for _, e := range about {
		charged = append(charged, e.charges()...)
		if slices.Contains([]string{"del", "unlink", "rate_set"}, e.name) {
			resets = append(resets, e.at)
		}
	}
	slices.Sort(resets)
	return about, charged, resets
}

func (w *world) judgeLimit(i int, o *Object) []check.Fault {
	define, rounding := func() check.Algorithm { return new(check.Bucket) }, bucketRounding
	switch o.Kind {
	case windowKind:
		define, rounding = func() check.Algorithm {
			return check.Either{new(check.Windows), &check.Windows{Early: windowRounding}}
		}, windowRounding
	case slidingKind:
		epoch := w.start.UnixNano()
		define, rounding = func() check.Algorithm { return &check.SlidingWindow{Epoch: epoch} }, windowRounding
	case storedKind:
		define, rounding = func() check.Algorithm { return new(check.SlidingLog) }, windowRounding
	}
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
	byLink := make(map[int][]*check.Ask)
	byPolicy := make(map[shareOf][]*check.Ask)
	for _, r := range w.asked {
		if r.object != i || r.reset {
			continue
		}
		r.Behind = slices.ContainsFunc(w.asked, func(o *request) bool {
			return o != r && o.object == i && o.link == r.link && o.Waits && !r.Waits &&
				o.Called <= r.Return && o.Return >= r.Called
		})
		r.Least, r.Slack = r.Rate, 2*int64(w.Most)
		if len(w.Faults) > 0 { // an answer may have been on its way for long
			r.Slack += int64(w.slack() + w.outages())
		}
		if r.source == ratelimit.SourceDegraded.String() {
			// Which limit a process knows of those that are stored is not known if they change.
			if r.Granted && w.Policy == "share" && (o.Kind != storedKind || len(w.limits) == 0) {
				of := shareOf{r.process, r.Rate}
				byPolicy[of] = append(byPolicy[of], r.share())
			}
			if r.Unsure = true; r.Granted {
				r.Granted = false
			}
		}
		if asks = append(asks, &r.Ask); r.Granted {
			byLink[r.link] = append(byLink[r.link], &r.Ask)
		}
	}
	for link, granted := range byLink {
		faults = append(faults, judgeCharges(o.Kind, granted, chargesOf(o.Kind, about, link), kept, rounding)...)
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

// shareOf is the part of a limit that a process has to itself.
type shareOf struct {
	process int
	limit   check.Rate
}

// judgeShares replays what a policy granted in each process.
func judgeShares(byPolicy map[shareOf][]*check.Ask) (faults []check.Fault) {
	for of, asks := range byPolicy {
		bucket := func() check.Algorithm { return new(check.Bucket) }
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
	a.Rate.Per *= shares
	a.Rate.Burst = max(1, a.Rate.Burst/shares)
	return &a
}

// rates gives requests of a stored limit the rates that were in force while they were under way: callers do not
// know them.
func rates(asks []*check.Ask, about []execution) {
	for _, a := range asks {
		a.Rate, a.Least = check.Rate{}, check.Rate{}
		for _, e := range about {
			if e.rate == 0 || e.at > a.Return {
				continue
			}
			rate := check.Rate{Permits: e.rate, Per: e.per, Burst: e.rate}
			if e.at < a.Called || a.Rate.Permits == 0 {
				a.Rate, a.Least = rate, rate
			}
			if rate.Permits > a.Rate.Permits {
				a.Rate = rate
			}
			if rate.Permits < a.Least.Permits {
				a.Least = rate
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
