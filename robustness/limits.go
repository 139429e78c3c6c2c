package robustness

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/robustness/history"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Limit is what a kind of limiter grants, and how a client of it is asked.
type Limit struct {
	ratelimit.Limit
	Policy func() ratelimit.Policy
	Bound  oracle.Bound
	Most   int64 // permits of one request

	// Of makes the limiter of an object.
	Of func(c *ratelimit.Client, object string) limiter
}

// limiter is a limit of one object.
type limiter struct {
	allow func(ctx context.Context, n int64) (ratelimit.Result, error)
	wait  func(ctx context.Context, n int64) error
	set   func(ctx context.Context) error // after a loss of the limit itself; may be nil
}

// The limits of a run. What a request finds exhausted is free again within milliseconds, so callers keep asking.
var (
	bucketLimit = ratelimit.PerSecond(100).WithBurst(20)
	windowLimit = ratelimit.Limit{Rate: 40, Per: 400 * time.Millisecond, Burst: 40}
)

// LimitKinds are the kinds of limiters.
var LimitKinds = []*Kind{
	{Name: "GCRA, FailClosed", Limit: bucket(bucketLimit, ratelimit.FailClosed)},
	{Name: "GCRA, FailOpen", Limit: bucket(bucketLimit, ratelimit.FailOpen)},
	{Name: "GCRA, LocalShare", Limit: bucket(bucketLimit, func() ratelimit.Policy { return ratelimit.LocalShare(4) })},
	{Name: "fixed window", Limit: fixedWindow()},
	{
		Name:  "sliding window",
		Limit: bucket(windowLimit, ratelimit.FailClosed, ratelimit.WithAlgorithm(ratelimit.SlidingWindow)),
	},
	{Name: "limit in Redis", Limit: logged()},
}

// bucket is a limit with the bound of a token bucket, which a sliding window keeps too.
func bucket(limit ratelimit.Limit, policy func() ratelimit.Policy, opts ...ratelimit.LimiterOption) *Limit {
	return &Limit{
		Limit: limit, Policy: policy, Most: 3, Of: keys(limit, opts...),
		Bound: oracle.Limit(limit).BucketBound(),
	}
}

func fixedWindow() *Limit {
	return &Limit{
		Limit: windowLimit, Policy: ratelimit.FailClosed, Most: 1,
		Of:    keys(windowLimit, ratelimit.WithAlgorithm(ratelimit.FixedWindow)),
		Bound: oracle.Limit(windowLimit).WindowsBound(),
	}
}

func keys(limit ratelimit.Limit, opts ...ratelimit.LimiterOption) func(*ratelimit.Client, string) limiter {
	return func(c *ratelimit.Client, object string) limiter {
		k := c.Limiter("robustness", limit, opts...)
		return limiter{
			allow: func(ctx context.Context, n int64) (ratelimit.Result, error) { return k.AllowN(ctx, object, n) },
			wait:  func(ctx context.Context, n int64) error { return k.WaitN(ctx, object, n) },
		}
	}
}

func logged() *Limit {
	return &Limit{
		Limit: windowLimit, Policy: ratelimit.FailClosed, Most: 1,
		Of: func(c *ratelimit.Client, object string) limiter {
			l := c.StoredLimiter(object)
			return limiter{l.AllowN, l.WaitN, func(ctx context.Context) error {
				_, err := l.TrySetRate(ctx, windowLimit)
				return err
			}}
		},
		Bound: oracle.Limit(windowLimit).LogBound(),
	}
}

// openLimit makes a client that asks for limits.
func (s *session) openLimit(rdb redis.UniversalClient, w *wheel.Wheel) (client, error) {
	c, err := ratelimit.New(rdb, ratelimit.WithWheel(w), ratelimit.WithPolicy(s.kind.Limit.Policy()),
		ratelimit.WithHooks(ratelimit.Hooks{Allowed: noteSource, Denied: noteSource}))
	if err != nil {
		return client{}, err
	}
	return client{func(rnd *rand.Rand) func(context.Context) {
		return (&asker{process: s.process, client: c, id: s.id(), rnd: rnd}).once
	}, c.Close}, nil
}

// sourceKey is the key of a *string in the context of a call, into which hooks write who decided: a wait returns
// only an error.
type sourceKey struct{}

func noteSource(e ratelimit.Event) {
	if s, ok := e.Context.Value(sourceKey{}).(*string); ok {
		*s = e.Result.Source.String()
	}
}

// asker is a goroutine that asks for permits of limits.
type asker struct {
	*process
	client *ratelimit.Client
	id     uint64
	rnd    *rand.Rand
}

// once makes one call. Some of the callers that wait give up.
func (a *asker) once(parent context.Context) {
	call := history.Event{
		Step: history.Called, ID: a.newID(), Client: a.id,
		Object: a.Objects[a.rnd.IntN(len(a.Objects))], N: 1, Try: a.rnd.IntN(3) > 0,
	}
	if a.rnd.IntN(4) == 0 {
		call.N += a.rnd.Int64N(a.kind.Limit.Most)
	}
	patience := time.Second
	if !call.Try && a.rnd.IntN(2) == 0 {
		patience = time.Duration(1+a.rnd.IntN(40)) * time.Millisecond
	}
	var source string
	ctx, cancel := context.WithTimeout(context.WithValue(parent, sourceKey{}, &source), patience)
	defer cancel()
	l := a.kind.Limit.Of(a.client, call.Object)
	a.rec.Record(call)
	e, retry := a.ask(ctx, l, call)
	if e.Step != history.Failed {
		e.Note = source
	}
	a.rec.Record(e)
	a.pause(parent, retry)
}

// ask makes the call and returns its end, and after which time to ask again.
func (a *asker) ask(ctx context.Context, l limiter, call history.Event) (end history.Event, retry time.Duration) {
	end, retry = history.Event{Step: history.Granted, ID: call.ID}, time.Duration(a.rnd.IntN(4))*time.Millisecond
	var err error
	if call.Try {
		var r ratelimit.Result
		if r, err = l.allow(ctx, call.N); err == nil && !r.Allowed {
			end.Step = history.Refused
			retry = min(r.RetryAfter, 50*time.Millisecond) + time.Duration(a.rnd.IntN(10))*time.Millisecond
		}
	} else {
		err = l.wait(ctx, call.N)
	}
	if err != nil {
		end.Step, end.Note = history.Failed, err.Error()
		retry = time.Duration(5+a.rnd.IntN(10)) * time.Millisecond
		if l.set != nil && errors.Is(err, ratelimit.ErrNotSet) {
			_ = l.set(ctx) // the next call tells
		}
	}
	return end, retry
}

func (a *asker) pause(ctx context.Context, d time.Duration) { _ = a.wheel.Sleep(ctx, d) } // ctx does not end

// LimitFigures are the figures of a run of limiters.
type LimitFigures struct {
	ByRedis     int64         `json:"byRedis"`  // permits
	ByPolicy    int64         `json:"byPolicy"` // permits granted while Redis did not answer
	Denied      int           `json:"denied"`   // calls
	OverMax     float64       `json:"overMax"`  // permits too many in the worst window
	Losses      int           `json:"losses"`   // of data
	Burst       int64         `json:"burst"`
	Utilisation float64       `json:"utilisation"` // of what the limits allow in the whole run
	Span        time.Duration `json:"span"`
}

func (f *LimitFigures) String() string {
	return fmt.Sprintf("%d permits granted by Redis and %d by the policy, %d calls denied, "+
		"over-admission %.1f with %d losses of data, utilisation %.2f",
		f.ByRedis, f.ByPolicy, f.Denied, f.OverMax, f.Losses, f.Utilisation)
}

// judgeLimits checks limits. What the policy grants in an outage is not limited.
func (r *Run) judgeLimits(res *Result, calls []*history.Call) {
	limit := r.kind().Limit
	f := &LimitFigures{Burst: limit.Burst, Losses: r.losses()}
	res.Limits = f
	first, last := int64(math.MaxInt64), int64(0)
	for _, calls := range history.ByObject(calls) {
		var granted []*history.Call
		for _, c := range calls {
			switch {
			case c.Outcome == history.Refused:
				f.Denied++
			case c.Held() && c.Note == ratelimit.SourceDegraded.String():
				f.ByPolicy += c.N
			case c.Held():
				granted = append(granted, c)
				f.ByRedis += c.N
				first, last = min(first, c.At), max(last, c.Return)
			}
		}
		if len(granted) > 0 {
			f.OverMax = max(f.OverMax, check.Excess(granted, limit.Bound))
			res.Faults = append(res.Faults, check.Limit(granted, limit.Bound, f.Losses, limit.Burst)...)
		}
	}
	if f.ByRedis > 0 {
		f.Span = time.Duration(last - first)
		may := oracle.Limit(limit.Limit).BucketBound()(f.Span)
		f.Utilisation = float64(f.ByRedis) / may / float64(len(r.objects))
	}
}

// losses is how often the data was lost.
func (r *Run) losses() int {
	n := r.deposed
	for _, f := range r.Scenario.Faults {
		if f.Loses {
			n += r.effects[f.Name]
		}
	}
	return n
}
