package sim

import (
	"context"
	"errors"
	"fmt"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/robustness/check"
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
	allow   func(context.Context) (ratelimit.Result, error)
	wait    func(context.Context) error
	reserve func(context.Context) (*ratelimit.Reservation, error)
	reset   func(context.Context) error
	set     func(context.Context) error // nil where the limit is part of each call
	key     string
}

// limiterOf returns the limiter of an object under a limit, for n permits.
func (p *process) limiterOf(o *Object, limit Limit, n int64) limiter {
	l := ratelimit.Limit{Rate: limit.Rate, Per: limit.Per, Burst: limit.Burst}
	if o.Kind == storedKind {
		s := p.limits.StoredLimiter(o.Name)
		return limiter{
			allow:   func(ctx context.Context) (ratelimit.Result, error) { return s.AllowN(ctx, n) },
			wait:    func(ctx context.Context) error { return s.WaitN(ctx, n) },
			reserve: func(ctx context.Context) (*ratelimit.Reservation, error) { return s.Reserve(ctx, n) },
			reset:   func(ctx context.Context) error { return s.SetRate(ctx, l) },
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
		allow:   func(ctx context.Context) (ratelimit.Result, error) { return k.AllowN(ctx, o.Name, n) },
		wait:    func(ctx context.Context) error { return k.WaitN(ctx, o.Name, n) },
		reserve: func(ctx context.Context) (*ratelimit.Reservation, error) { return k.Reserve(ctx, o.Name, n) },
		reset:   func(ctx context.Context) error { return k.Reset(ctx, o.Name) },
		key:     k.RedisKey(o.Name),
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
	used         int64        // of the permits of a reservation, if it is one
	debts        []*check.Ask // what was used beyond them, each time that it was sent
}

// resultKey is the key of a *ratelimit.Result in the context of a call: a wait returns only an error.
type resultKey struct{}

func noteResult(e ratelimit.Event) {
	if r, ok := e.Context.Value(resultKey{}).(*ratelimit.Result); ok {
		*r = e.Result
	}
}

// ask carries out an operation about a limit.
func (w *world) ask(ctx context.Context, p *process, o Op, a *activity) {
	limit := w.limitNow(o.Object)
	if o.Action == Change {
		limit = o.Limit
	}
	object := &w.Objects[o.Object]
	l := p.limiterOf(object, limit, o.N)
	r := &request{object: o.Object, link: p.link.number, process: p.number}
	r.By = r.link
	r.N, r.Limit, r.Waits = o.N, oracle.Limit(limit), o.Action == Take
	w.mu.Lock()
	w.ids++
	r.ID, r.Called = w.ids, w.stampLocked()
	r.Return, r.Unsure = forever, true // until it returns, which those of a process that is killed do not
	w.asked = append(w.asked, r)
	if o.Patience > 0 && o.Action != Settle {
		r.Leaves = r.Called + int64(o.Patience)
	}
	w.traceLocked(r.Called, fmt.Sprintf("process %d: %s #%d %s n=%d", p.number, o.Action, r.ID, object.Name, o.N))
	changes := o.Action == Change || o.Action == Reset && l.set != nil // which sets the limit as well
	if changes {
		w.limits = append(w.limits, change{o.Object, limit, r.Called, forever})
	}
	w.mu.Unlock()
	var result ratelimit.Result
	ctx = context.WithValue(ctx, resultKey{}, &result)
	if o.Action == Settle {
		w.reserve(ctx, p, l, o, a, r, &result)
		return
	}
	err := w.call(ctx, l, o, &result)
	if !p.awake() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if changes {
		for i, c := range w.limits {
			if c.from == r.Called && err == nil {
				w.limits[i].to = w.stampLocked()
			}
		}
	}
	r.reset = o.Action == Change || o.Action == Reset
	w.returnedLocked(ctx, p, r, o, err, &result)
	r.used = r.N
}

// returnedLocked notes how a request ended.
func (w *world) returnedLocked(
	ctx context.Context, p *process, r *request, o Op, err error, result *ratelimit.Result,
) {
	r.Return, r.err, r.source = w.stampLocked(), err, result.Source.String()
	r.Granted = err == nil && (r.Waits || result.Allowed)
	r.Denied = err == nil && !r.Granted ||
		errors.Is(err, ratelimit.ErrWouldExceedDeadline) || errors.Is(err, ratelimit.ErrExceedsLimit)
	r.Retry = result.RetryAfter
	r.Unsure = !r.Granted && !r.Denied && !(r.Waits && ctx.Err() != nil && errors.Is(err, ctx.Err()))
	degraded := result.Source == ratelimit.SourceDegraded
	if (err != nil && !r.Denied || degraded) && ctx.Err() == nil {
		w.troubledLocked(p, o, r.Called, degraded, err)
	}
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
