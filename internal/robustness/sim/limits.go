package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/robustness/check"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// The kinds of limits.
const (
	bucketKind = "GCRA limit"
	windowKind = "window limit"
	storedKind = "stored limit"
)

var limitKinds = []string{bucketKind, windowKind, storedKind}

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
	algorithm := ratelimit.GCRA
	if o.Kind == windowKind {
		algorithm = ratelimit.FixedWindow
	}
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
	r.N, r.Rate, r.Waits = o.N, check.Rate{Permits: limit.Rate, Per: limit.Per, Burst: limit.Burst}, o.Action == Take
	w.mu.Lock()
	w.ids++
	r.ID, r.Called = w.ids, w.stampLocked()
	r.Return, r.Unsure = forever, true // until it returns
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
	w.asked = append(w.asked, r)
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

func (w *world) judgeLimit(i int, o *Object) (faults []check.Fault) {
	define, rounding := func() check.Algorithm { return new(check.Bucket) }, bucketRounding
	switch o.Kind {
	case windowKind:
		define, rounding = func() check.Algorithm { return new(check.Windows) }, windowRounding
	case storedKind:
		define, rounding = func() check.Algorithm { return new(check.SlidingLog) }, windowRounding
	}
	key := w.admin.limiterOf(o, o.Limit, 1).key
	other := func(e execution) bool { return !e.ran || e.refused || !slices.Contains(e.keys, key) }
	about := slices.DeleteFunc(slices.Clone(w.server.executed), other)
	resets := slices.Clone(w.server.lost)
	var executed []int64
	for _, e := range about {
		switch e.name {
		case "del", "unlink", "rate_set":
			resets = append(resets, e.at)
		case "rate_set with state":
		default:
			executed = append(executed, e.at)
		}
	}
	slices.Sort(resets)
	var asks []*check.Ask
	settled := slices.Clone(resets)
	for _, c := range w.limits {
		if c.object == i {
			settled = append(settled, c.from)
		}
	}
	byPolicy := make(map[int][]*check.Ask)
	for _, r := range w.asked {
		if r.object != i || r.reset {
			continue
		}
		w.bound(r, about)
		r.Behind = slices.ContainsFunc(w.asked, func(o *request) bool {
			return o != r && o.object == i && o.link == r.link && o.Waits && !r.Waits &&
				o.Called <= r.Return && o.Return >= r.Called
		})
		r.Least, r.Slack = r.Rate, 2*int64(w.Most)
		if len(w.Faults) > 0 { // an answer may have been on its way for long
			r.Slack += int64(w.slack() + w.outages())
		}
		if r.source == ratelimit.SourceDegraded.String() {
			// Which limits a process knows is not known if they change.
			if r.Granted && w.Policy == "share" && len(w.limits) == 0 {
				byPolicy[r.process] = append(byPolicy[r.process], r.share())
			}
			if r.Unsure = true; r.Granted {
				r.Granted = false
			}
		}
		asks = append(asks, &r.Ask)
	}
	if o.Kind == storedKind {
		rates(asks, about)
	} else {
		w.largest(i, asks)
	}
	faults = check.Replay(define, asks, resets, executed, rounding)
	if !w.has("server's clock steps") { // what is left of a wait is unknown then
		patience := limitPatience + 20*int64(w.Most)
		if len(w.Faults) > 0 {
			patience += int64(w.slack() + w.outages())
		}
		faults = append(faults, check.Denials(define, asks, resets, settled, rounding, patience)...)
	}
	faults = append(faults, w.judgePolicy(i)...)
	return append(faults, judgeShares(byPolicy)...)
}

// judgeShares replays what a policy granted in each process, which has its part of the limit to itself.
func judgeShares(byPolicy map[int][]*check.Ask) (faults []check.Fault) {
	for process, asks := range byPolicy {
		bucket := func() check.Algorithm { return new(check.Bucket) }
		for _, f := range check.Replay(bucket, asks, nil, nil, bucketRounding) {
			f.Promise, f.Detail = "a share is kept", fmt.Sprintf("process %d: %s", process, f.Detail)
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
		own := k.private || k.mistake || k.object && f.Object != object || k.Name == "process stands still"
		if !own || k.ends || k.loses {
			return nil
		}
	}
	for _, r := range w.asked {
		unavailable := errors.Is(r.err, ratelimit.ErrUnavailable)
		degraded := r.source == ratelimit.SourceDegraded.String()
		hurried := r.Leaves > 0 && r.Leaves-r.Called < limitTimeout // its own deadline may come before the answer
		if r.object == object && !hurried && (unavailable || degraded) {
			faults = append(faults, check.Fault{Promise: "a policy decides in outages only", Detail: fmt.Sprintf(
				"request %d, at %v: by the policy %v, %v", r.ID, time.Duration(r.Called), degraded, r.err)})
		}
	}
	return faults
}

// bound finds out when a request may have been granted: when the server executed a script of its process about
// the limit.
func (w *world) bound(r *request, about []execution) {
	since := r.Called
	// It may have got permits that were charged for a waiter who left.
	if r.Waits || r.source == ratelimit.SourceLocal.String() {
		since -= keptFor
	}
	for _, e := range about {
		decides := strings.HasPrefix(e.name, "rate_") && e.rate == 0
		if decides && e.link == r.link && e.at > since && e.at < r.Return {
			r.Instants = append(r.Instants, e.at)
		}
	}
	slices.Reverse(r.Instants)
	trip := int64(w.Most + 2*w.Tick)
	switch {
	case len(r.Instants) == 0 || r.Waits && r.Return-r.Instants[0] > trip: // it waited for its time
		r.Instants = slices.Insert(r.Instants, 0, r.Return)
	case r.Waits:
		r.Instants = slices.Insert(r.Instants, 1, r.Return)
	}
}

// share is the request of one process that has its part of the limit to itself.
func (r *request) share() *check.Ask {
	a := r.Ask
	a.Instants = []int64{a.Called, a.Return}
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

// largest gives requests of an object the largest limit that any of them had, if they had different ones. The order in
// which the server executed them is not known, and with many limits for one key there are too many orders to try.
func (w *world) largest(object int, asks []*check.Ask) {
	limits := []Limit{w.Objects[object].Limit}
	for _, c := range w.limits {
		if c.object == object {
			limits = append(limits, c.limit)
		}
	}
	top := check.Rate{Per: limits[0].Per}
	for _, l := range limits {
		top.Permits = max(top.Permits, l.Rate)
	}
	for _, l := range limits { // a bucket holds the time in which its burst comes back
		top.Burst = max(top.Burst, l.Burst, (l.Burst*top.Permits+l.Rate-1)/l.Rate)
	}
	if len(limits) > 1 {
		for _, a := range asks {
			a.Rate = top
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
