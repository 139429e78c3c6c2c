// Package httplimit is HTTP middleware on package ratelimit. It rejects requests over the limit with status 429
// and a Retry-After field. It tells clients the limit and the remaining permits in header fields, which
// WithFields selects: by default RateLimit-Policy and RateLimit. A request that is not limited gets no fields.
// All times in fields are whole seconds, rounded up. A limit with ratelimit.WithShadow rejects nothing: where it would
// have, the response of the handler has the field RateLimit-Would-Deny: true, unless NoFields is selected.
//
//	perAddress := limits.Limiter("api", ratelimit.PerSecond(10).WithBurst(20))
//	limited := httplimit.New(perAddress, httplimit.ByRemoteAddr)
//	http.ListenAndServe(addr, limited(handler))
//
// A request costs one call of perAddress.AllowN. If that fails, the response has status 503; with the policy
// ratelimit.FailOpen it does not fail while Redis is down. If the client goes away before the decision, which
// cancels the context of the request, the request is not served: its status is 499, and the function of
// WithFailed is not called. A deadline of the context is a failure as any other, unless the policy decides by then.
//
// NewPerKey gives each key its own limit, such as the plan of a tenant. NewAll decides by several limits in one
// step. Routers whose handlers are not those of net/http, such as gin and echo, call Middleware.Decide. NewTransport
// limits the requests of an http.Client: they wait, also for the Retry-After of a server.
package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// Limiter is the limiter of New; *ratelimit.Limiter implements it, *ratelimit.StoredLimiter, which has no keys, does
// not. New calls Limit. Each request calls AllowN, which must be safe for concurrent use.
type Limiter interface {
	AllowN(ctx context.Context, key string, n int64) (ratelimit.Result, error)
	Limit() ratelimit.Limit
}

// KeyFunc returns the key for which a request counts, and whether the request is limited at all. Any key is
// valid, also the empty key. A client must not escape the limit by leaving out the field from which its key is
// read: limit such a request by another key, or return one key for all such requests. A KeyFunc must be safe
// for concurrent use.
type KeyFunc func(*http.Request) (key string, limited bool)

// LimitFunc returns the key for which a request counts, the limit of that key, and whether the request is limited at
// all. Limiter.Limit is the default to return, ratelimit.PerDay(0) denies the request, and the zero Limit, such as
// that of a row missing in a table, is a failure; see NewPerKey. Otherwise it is like KeyFunc.
type LimitFunc func(*http.Request) (key string, limit ratelimit.Limit, limited bool)

// Middleware returns a handler that passes on the requests that the limit grants, and responds to the others. It panics
// if the handler is nil. It is safe for concurrent use.
type Middleware func(http.Handler) http.Handler

// Decide limits a request where there is no http.Handler to call next, as in gin and echo. It reports whether to serve
// the request. If so, it has set the header fields; if not, it has written the response.
func (m Middleware) Decide(w http.ResponseWriter, r *http.Request) (serve bool) {
	m(http.HandlerFunc(func(_ http.ResponseWriter, decided *http.Request) {
		serve = true
		if decided != r {
			*r = *decided // with the reservation in its context
		}
	})).ServeHTTP(w, r)
	return serve
}

// Option configures New, NewPerKey and NewAll. If an option is given twice, the last one counts.
type Option interface{ apply(*config) }

type option func(*config)

func (o option) apply(c *config) { o(c) }

type config struct {
	name   string
	fields Fields
	cost   func(*http.Request) int64
	settle bool
	denied func(http.ResponseWriter, *http.Request, ratelimit.Result)
	failed func(http.ResponseWriter, *http.Request, error)
}

// Fields selects the header fields that tell clients about the limit. Retry-After does not depend on it: each
// denial has it, except for a cost above the burst, and for a limit of 0, which sends no fields.
//
// The permits left are not known for a cost of 0, for a cost above the burst, and if the policy of the client decides.
// Then RateLimit-Policy is sent alone, if it is selected. A response of WithFailed has no fields of the limit.
//
// If several of these handlers serve a request, RateLimit-Policy and RateLimit have the members of all of them. A name
// that the response has already gets a hyphen and the next free number: "default" and "default-2". The X-RateLimit
// fields describe the limit with the fewest requests left, or the one that denied the request.
//
// A decision under ratelimit.WithShadow sends none of these fields, so that no client obeys a limit on trial. If the
// limit would have denied the request, RateLimit-Would-Deny: true is sent, except with NoFields.
type Fields uint8

const (
	// NoFields selects no fields.
	NoFields Fields = 0
	// RateLimitFields selects RateLimit-Policy and RateLimit, of draft-ietf-httpapi-ratelimit-headers-11: the
	// name of each limit, its burst, the permits left, and the seconds until the whole burst is back.
	RateLimitFields Fields = 1
	// XRateLimitFields selects X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset, which many
	// services send: the burst, the permits left, and the seconds from now until the whole burst is back. For
	// several limits they describe the one with the fewest requests left.
	XRateLimitFields Fields = 2
)

const argument = conventions.Package("httplimit")

// WithFields sets the fields of responses: RateLimitFields, which is the default, XRateLimitFields, both
// combined by |, or NoFields.
func WithFields(fields Fields) Option {
	if fields > RateLimitFields|XRateLimitFields {
		panic(argument.Error("WithFields", uint8(fields), "must be a combination of the constants"))
	}
	return option(func(c *config) { c.fields = fields })
}

// WithName sets the name of the limit in the fields: printable ASCII, by default "default". NewAll appends a
// hyphen and the number of the part, from 1 on.
func WithName(name string) Option {
	for _, c := range []byte(name) {
		if c < ' ' || c > '~' {
			panic(argument.Error("WithName", strconv.Quote(name), "must be printable ASCII"))
		}
	}
	return option(func(c *config) { c.name = name })
}

// WithCost sets how many permits a request takes; with NewAll, how many times the cost of each part. The
// default is 1. A request of cost 0 is served without a decision. A request of a cost above the burst is denied
// without Retry-After, because it could never be granted; Stats.Failed counts it, not Stats.Denied. A negative cost is
// a failure; see WithFailed.
func WithCost(f func(*http.Request) int64) Option {
	if f == nil {
		panic(argument.Nil("WithCost"))
	}
	return option(func(c *config) { c.cost = f })
}

// WithReservation reserves the cost of a request, so that the handler can settle it when it knows the real one:
//
//	ratelimit.ReservationFromContext(r.Context()).Settle(context.WithoutCancel(r.Context()), used)
//
// If the handler does not settle it, the request costs what it has reserved. For what a settlement does, and when there
// is nothing to settle, see ratelimit.Reservation and ratelimit.Result. The limiter of New must have the method
// TryReserve of *ratelimit.Limiter, or New panics. Middleware.Decide puts the context into the request of its caller.
//
// If several of these handlers serve a request, the context has only the Reservation of the innermost one. Use NewAll
// for several limits: its Reservation settles all of them, by a number for each.
func WithReservation() Option { return option(func(c *config) { c.settle = true }) }

// WithDenied sets the function that responds to denied requests. It gets the decision, whose Parts tell which limits of
// NewAll denied the request. It writes the status; the fields are already set. For a cost above the burst, which could
// never be granted, the Result is zero: its RetryAfter is 0. The default writes a short text with status 429.
func WithDenied(f func(http.ResponseWriter, *http.Request, ratelimit.Result)) Option {
	if f == nil {
		panic(argument.Nil("WithDenied"))
	}
	return option(func(c *config) { c.denied = f })
}

// WithFailed sets the function that responds if there was no decision, for example because Redis is down and
// the policy is FailClosed, the default. It writes the status, and may set Retry-After if clients should wait.
// The default writes a short text with status 503.
func WithFailed(f func(http.ResponseWriter, *http.Request, error)) Option {
	if f == nil {
		panic(argument.Nil("WithFailed"))
	}
	return option(func(c *config) { c.failed = f })
}

// statusClientClosedRequest is the status that servers log for a request whose client went away before the
// response. No client sees it.
const statusClientClosedRequest = 499

// New returns middleware that limits requests by one limit for every key. Like the options, New panics with a
// *cogwheel.InvalidError: if an argument is nil, if the limiter has an invalid argument, or if its limit has no
// period.
func New(l Limiter, key KeyFunc, opts ...Option) Middleware {
	if l == nil {
		panic(argument.Nil("limiter"))
	}
	if key == nil {
		panic(argument.Nil("key function"))
	}
	checkLimiter(l)
	m := &middleware{config: configure(opts)}
	policies := []policyField{{m.name, parameters(l.Limit())}}
	allow := l.AllowN
	if m.settle {
		reserver, ok := l.(reserver)
		if !ok {
			panic(argument.Error("limiter", fmt.Sprintf("%T", l), "must have TryReserve for WithReservation"))
		}
		allow = reserver.TryReserve
	}
	m.subject = func(r *http.Request) (subject, bool) {
		key, limited := key(r)
		return subject{policies, func(n int64) (ratelimit.Result, error) {
			return allow(r.Context(), key, n)
		}}, limited
	}
	return m.wrap
}

// NewPerKey returns middleware that limits each request by the limit that f returns with its key, such as the
// plan of a tenant. An invalid limit is a failure of the request; see WithFailed. The limit of a key may change
// from one request to the next: see ratelimit.Limiter.With. NewPerKey panics as New does.
func NewPerKey(l *ratelimit.Limiter, f LimitFunc, opts ...Option) Middleware {
	if l == nil {
		panic(argument.Nil("limiter"))
	}
	if f == nil {
		panic(argument.Nil("limit function"))
	}
	checkLimiter(l)
	m := &middleware{config: configure(opts)}
	m.subject = func(r *http.Request) (subject, bool) {
		key, limit, limited := f(r)
		if !limited {
			return subject{}, false
		}
		of := l.With(limit)
		return subject{[]policyField{{m.name, parameters(of.Limit())}}, func(n int64) (ratelimit.Result, error) {
			if m.settle {
				return of.TryReserve(r.Context(), key, n)
			}
			return of.AllowN(r.Context(), key, n)
		}}, true
	}
	return m.wrap
}

// NewAll returns middleware that limits requests by several limits each, such as those of the user and of the
// service: it serves a request if all of them grant it, and otherwise charges none of them. parts returns the
// limits of a request, made by Limiters of c, or none if the request is not limited. ratelimit.Client.All
// describes which limits can be combined; parts that it refuses are a failure of the request. The function parts must
// be safe for concurrent use. Like New, NewAll panics if an argument is nil.
//
//	both := httplimit.NewAll(limits, func(r *http.Request) []ratelimit.Part {
//		return []ratelimit.Part{perUser.Part(user(r)), perService.Part("mail")}
//	})
func NewAll(
	c *ratelimit.Client, parts func(*http.Request) []ratelimit.Part, opts ...Option,
) Middleware {
	if c == nil {
		panic(argument.Nil("client"))
	}
	if parts == nil {
		panic(argument.Nil("function of parts"))
	}
	m := &middleware{config: configure(opts)}
	m.subject = func(r *http.Request) (subject, bool) {
		of := parts(r)
		if len(of) == 0 {
			return subject{}, false
		}
		policies := make([]policyField, len(of))
		for i, p := range of {
			name := m.name + "-" + strconv.Itoa(i+1) // not the prefix of its keys, which clients need not know
			policies[i] = policyField{name, parameters(p.Limit())}
		}
		all := c.All(of...)
		return subject{policies, func(n int64) (ratelimit.Result, error) {
			if m.settle {
				return all.TryReserve(r.Context(), n)
			}
			return all.AllowN(r.Context(), n)
		}}, true
	}
	return m.wrap
}

// configure applies options to the defaults.
func configure(opts []Option) config {
	cfg := config{
		name:   "default",
		fields: RateLimitFields,
		cost:   func(*http.Request) int64 { return 1 },
		denied: func(w http.ResponseWriter, _ *http.Request, _ ratelimit.Result) {
			http.Error(w, "too many requests", http.StatusTooManyRequests)
		},
		failed: func(w http.ResponseWriter, _ *http.Request, _ error) {
			http.Error(w, "rate limiter unavailable", http.StatusServiceUnavailable)
		},
	}
	for _, o := range opts {
		if o == nil {
			panic(argument.Nil("option"))
		}
		o.apply(&cfg)
	}
	return cfg
}

// checkLimiter panics if every request would fail.
func checkLimiter(l Limiter) {
	if made, ok := l.(interface{ Err() error }); ok && made.Err() != nil {
		panic(made.Err())
	}
	if limit := l.Limit(); limit.Rate < 0 || limit.Per <= 0 || limit.Burst < 0 {
		panic(argument.Error("limit", limit, "must have a period"))
	}
}

// middleware has the arguments of New, NewPerKey or NewAll.
type middleware struct {
	config
	subject func(*http.Request) (s subject, limited bool)
}

// subject is the limits of one request.
type subject struct {
	policies []policyField
	allow    func(n int64) (ratelimit.Result, error)
}

// reserver is a Limiter whose permits can be settled.
type reserver interface {
	TryReserve(ctx context.Context, key string, n int64) (ratelimit.Result, error)
}

func (m *middleware) wrap(next http.Handler) http.Handler {
	if next == nil {
		panic(argument.Nil("handler"))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
}

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	s, limited := m.subject(r)
	if !limited {
		next.ServeHTTP(w, r)
		return
	}
	cost := m.cost(r)
	if cost == 0 {
		m.tell(w, s, nil)
		next.ServeHTTP(w, r)
		return
	}
	result, err := s.allow(cost)
	switch {
	case errors.Is(err, ratelimit.ErrExceedsLimit):
		m.tell(w, s, nil)
		m.denied(w, r, ratelimit.Result{})
		return
	case err != nil && errors.Is(r.Context().Err(), context.Canceled):
		w.WriteHeader(statusClientClosedRequest)
		return
	case err != nil:
		m.failed(w, r, err)
		return
	}
	m.tell(w, s, &result)
	if !result.Allowed {
		if result.RetryAfter < ratelimit.Never {
			w.Header().Set("Retry-After", strconv.FormatInt(max(1, seconds(result.RetryAfter)), 10))
		}
		m.denied(w, r, result)
		return
	}
	if result.Reservation != nil {
		r = r.WithContext(ratelimit.ContextWithReservation(r.Context(), result.Reservation))
	}
	next.ServeHTTP(w, r)
}
