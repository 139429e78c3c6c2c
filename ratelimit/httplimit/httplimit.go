// Package httplimit is HTTP middleware on ratelimit: it rejects requests over the limit with status 429 and
// a Retry-After field, and tells clients the limit and what is left of it in the fields of WithFields: by
// default RateLimit-Policy and RateLimit. A request that is not limited gets neither. All times in fields
// are in whole seconds, rounded up.
//
//	perUser := limits.Limiter("api", ratelimit.PerSecond(10).WithBurst(20))
//	mux := httplimit.New(perUser, httplimit.ByRemoteAddr)
//	http.ListenAndServe(addr, mux(handler))
//
// A request costs what perUser.AllowN costs. If that fails, the response has status 503; with the policy
// ratelimit.FailOpen it does not fail while Redis is down. If the client goes away before the decision, which
// cancels the context of the request, the request is not served: its status is 499, and the function of
// WithFailed is not called.
//
// Where tenants have limits of their own, WithLimit chooses the limit of a request. Where several limits hold
// for a request, NewAll decides by all of them in one step.
package httplimit

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/invalid"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// Limiter is what the middleware needs; *ratelimit.Limiter has it.
type Limiter interface {
	AllowN(ctx context.Context, key string, n int64) (ratelimit.Result, error)
	Limit() ratelimit.Limit
}

// KeyFunc returns the key that a request counts for, and whether it is limited at all. Any key will do, the
// empty one included. A client must not escape the limit by leaving out the field that its key is read
// from: limit such a request by something else, or return a key that all of them share. A KeyFunc must be
// safe for concurrent use.
type KeyFunc func(*http.Request) (key string, limited bool)

// Option configures New and NewAll. If an option is given twice, the last one counts.
type Option interface{ apply(*config) }

type option func(*config)

func (o option) apply(c *config) { o(c) }

type config struct {
	name   string
	fields Fields
	cost   func(*http.Request) int64
	limit  func(*http.Request) ratelimit.Limit
	denied http.Handler
	failed func(http.ResponseWriter, *http.Request, error)
}

// Fields are the header fields that tell clients about the limit. Whatever they are, Retry-After is set on
// each denial except one of a cost above the burst. On the response to a request of such a cost, of cost 0,
// or decided by the policy of the client, RateLimit-Policy is the only other field. A response of
// WithFailed has none.
type Fields uint8

const (
	// NoFields tells nothing.
	NoFields Fields = 0
	// RateLimitFields are RateLimit-Policy and RateLimit, of draft-ietf-httpapi-ratelimit-headers-11:
	// the name of each limit, its burst, the permits left, and the seconds until the whole burst is
	// back.
	RateLimitFields Fields = 1
	// XRateLimitFields are X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset, which many
	// services have: the same without names, where Reset is in seconds from now. Of several limits they
	// are of the one with the fewest requests left.
	XRateLimitFields Fields = 2
)

const argument = invalid.Package("httplimit")

// WithFields sets which fields responses have: RateLimitFields, which is the default, XRateLimitFields, both
// of them combined by |, or NoFields.
func WithFields(fields Fields) Option {
	if fields > RateLimitFields|XRateLimitFields {
		panic(argument.Error("WithFields", uint8(fields), "must be a combination of the constants"))
	}
	return option(func(c *config) { c.fields = fields })
}

// WithLimit sets a function that chooses the limit of a request, as for tenants that have limits of their
// own. The limiter of New must be a *ratelimit.Limiter, or have its method AllowLimitN: otherwise New
// panics. ratelimit.Limiter.With says what becomes of a key whose limit changes. A limit that is not valid
// is a failure of the request. It has no effect on NewAll, whose function chooses limits itself.
func WithLimit(f func(*http.Request) ratelimit.Limit) Option {
	if f == nil {
		panic(argument.Nil("WithLimit"))
	}
	return option(func(c *config) { c.limit = f })
}

// WithName sets the name of New's limit in the fields: printable ASCII, default "default". NewAll names
// each limit by the prefix of its Limiter, with "?" for other characters.
func WithName(name string) Option {
	for _, c := range []byte(name) {
		if c < ' ' || c > '~' {
			panic(argument.Error("WithName", strconv.Quote(name), "must be printable ASCII"))
		}
	}
	return option(func(c *config) { c.name = name })
}

// WithCost sets how many permits a request takes; with NewAll, how many times the cost of each part. The
// default is 1. A request that costs 0 passes without a decision. One that costs more than the burst gets
// status 429 without Retry-After, for it could never be granted. A negative cost is a failure.
func WithCost(f func(*http.Request) int64) Option {
	if f == nil {
		panic(argument.Nil("WithCost"))
	}
	return option(func(c *config) { c.cost = f })
}

// WithDenied sets the handler of denied requests, which writes the status. The fields are set already. The
// default is a short text with status 429.
func WithDenied(h http.Handler) Option {
	if h == nil {
		panic(argument.Nil("WithDenied"))
	}
	return option(func(c *config) { c.denied = h })
}

// WithFailed sets the function that responds, status included, when there was no decision, for example
// because Redis is down and the policy is FailClosed, the default. Set Retry-After there if clients should
// wait. The default is a short text with status 503.
func WithFailed(f func(http.ResponseWriter, *http.Request, error)) Option {
	if f == nil {
		panic(argument.Nil("WithFailed"))
	}
	return option(func(c *config) { c.failed = f })
}

// statusClientClosedRequest is what servers log for a request whose client went away before the response; no
// client sees it.
const statusClientClosedRequest = 499

// New returns middleware that limits requests. It is safe for concurrent use. Like the options, New panics
// with a *cogwheel.InvalidError: if an argument is nil, the arguments of the limiter were refused, or its
// limit has no rate, period or burst.
func New(l Limiter, key KeyFunc, opts ...Option) func(http.Handler) http.Handler {
	check(l, key)
	m := &middleware{config: configure(opts)}
	name := quote(m.name)
	fixed := []policyField{{name, policy(name, l.Limit())}}
	perRequest, _ := l.(limitedPerCall)
	if m.limit != nil && perRequest == nil {
		panic(argument.Error("limiter", fmt.Sprintf("%T", l), "must have AllowLimitN for WithLimit"))
	}
	m.subject = func(r *http.Request) (subject, bool) {
		key, limited := key(r)
		if !limited {
			return subject{}, false
		}
		if m.limit == nil {
			return subject{fixed, func(n int64) (ratelimit.Result, error) {
				return l.AllowN(r.Context(), key, n)
			}}, true
		}
		limit := m.limit(r)
		return subject{[]policyField{{name, policy(name, limit)}}, func(n int64) (ratelimit.Result, error) {
			return perRequest.AllowLimitN(r.Context(), key, n, limit)
		}}, true
	}
	return m.wrap
}

// NewAll returns middleware that limits requests by several limits each, such as those of the user and of the
// service: it serves a request if all of them grant it, and charges none of them otherwise. parts returns the
// limits of a request, made by the Limiters of c, or none if it is not limited. ratelimit.Client.All
// says which limits can be combined; parts that cannot be are a failure of the request. Like New, NewAll
// panics on an argument that is nil.
//
//	both := httplimit.NewAll(limits, func(r *http.Request) []ratelimit.Part {
//		return []ratelimit.Part{perUser.Part(user(r)), perService.Part("mail")}
//	})
func NewAll(
	c *ratelimit.Client, parts func(*http.Request) []ratelimit.Part, opts ...Option,
) func(http.Handler) http.Handler {
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
			name := quote(printable(p.Name()))
			policies[i] = policyField{name, policy(name, p.Limit())}
		}
		all := c.All(of...)
		return subject{policies, func(n int64) (ratelimit.Result, error) { return all.AllowN(r.Context(), n) }}, true
	}
	return m.wrap
}

// configure applies options to the defaults.
func configure(opts []Option) config {
	cfg := config{
		name:   "default",
		fields: RateLimitFields,
		cost:   func(*http.Request) int64 { return 1 },
		denied: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "too many requests", http.StatusTooManyRequests)
		}),
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

// check panics on what could only fail for each request.
func check(l Limiter, key KeyFunc) {
	if l == nil {
		panic(argument.Nil("limiter"))
	}
	if key == nil {
		panic(argument.Nil("key function"))
	}
	if made, ok := l.(interface{ Err() error }); ok && made.Err() != nil {
		panic(made.Err())
	}
	if limit := l.Limit(); limit.Rate < 1 || limit.Per <= 0 || limit.Burst < 1 {
		panic(argument.Error("limit", limit, "must have a rate, a period and a burst"))
	}
}

// limitedPerCall is a Limiter that takes the limit with each call.
type limitedPerCall interface {
	AllowLimitN(ctx context.Context, key string, n int64, limit ratelimit.Limit) (ratelimit.Result, error)
}

// middleware is what New and NewAll make of their arguments.
type middleware struct {
	config
	subject func(*http.Request) (s subject, limited bool)
}

// subject is what one request counts for.
type subject struct {
	policies []policyField
	allow    func(n int64) (ratelimit.Result, error)
}

// policyField is the name of a limit as a field has it, and its member of the field RateLimit-Policy; none if
// the limit is not known here.
type policyField struct{ name, policy string }

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
		m.tellPolicies(w, s)
		next.ServeHTTP(w, r)
		return
	}
	result, err := s.allow(cost)
	switch {
	case errors.Is(err, ratelimit.ErrExceedsLimit):
		m.tellPolicies(w, s)
		m.denied.ServeHTTP(w, r)
		return
	case err != nil && errors.Is(r.Context().Err(), context.Canceled):
		w.WriteHeader(statusClientClosedRequest)
		return
	case err != nil:
		m.failed(w, r, err)
		return
	}
	m.tellPolicies(w, s)
	if result.Source != ratelimit.SourceDegraded {
		m.tellCounts(w, s, result)
	}
	if !result.Allowed {
		w.Header().Set("Retry-After", strconv.FormatInt(max(1, seconds(result.RetryAfter)), 10))
		m.denied.ServeHTTP(w, r)
		return
	}
	next.ServeHTTP(w, r)
}

// tellPolicies sets the fields that do not depend on what was used.
func (m *middleware) tellPolicies(w http.ResponseWriter, s subject) {
	if m.fields&RateLimitFields == 0 {
		return
	}
	var known []string
	for _, p := range s.policies {
		if p.policy != "" {
			known = append(known, p.policy)
		}
	}
	if len(known) > 0 {
		w.Header().Set("RateLimit-Policy", strings.Join(known, ", "))
	}
}

// tellCounts sets the fields that do.
func (m *middleware) tellCounts(w http.ResponseWriter, s subject, result ratelimit.Result) {
	if m.fields&RateLimitFields != 0 {
		parts := result.Parts
		if parts == nil && len(s.policies) == 1 {
			parts = []ratelimit.Result{result}
		}
		members := make([]string, len(parts))
		for i, of := range parts {
			members[i] = fmt.Sprintf("%s;r=%d;t=%d", s.policies[i].name, of.Remaining, seconds(of.ResetAfter))
		}
		if len(members) > 0 {
			w.Header().Set("RateLimit", strings.Join(members, ", "))
		}
	}
	if m.fields&XRateLimitFields != 0 {
		w.Header().Set("X-RateLimit-Limit", strconv.FormatInt(result.Limit, 10))
		w.Header().Set("X-RateLimit-Remaining", strconv.FormatInt(result.Remaining, 10))
		w.Header().Set("X-RateLimit-Reset", strconv.FormatInt(seconds(result.ResetAfter), 10))
	}
}

// printable replaces what a field cannot hold.
func printable(name string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, name)
}

// policy returns the field with the quota and the window in seconds. A window that is no whole number of
// seconds is left out.
func policy(name string, l ratelimit.Limit) string {
	if l.Rate < 1 || l.Burst < 1 {
		return ""
	}
	text := fmt.Sprintf("%s;q=%d", name, l.Burst)
	// Per * Burst may be beyond 64 bits.
	perSecond := new(big.Int).Mul(big.NewInt(l.Rate), big.NewInt(int64(time.Second)))
	refill := new(big.Rat).SetFrac(big.NewInt(int64(l.Per)), perSecond)
	if refill.Mul(refill, new(big.Rat).SetInt64(l.Burst)); refill.IsInt() && refill.Sign() > 0 {
		text += ";w=" + refill.Num().String()
	}
	return text
}

// seconds rounds up, so that a client that waits for it has waited long enough.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// quote returns a string of RFC 9651.
func quote(s string) string {
	out := []byte{'"'}
	for _, c := range []byte(s) {
		if c == '"' || c == '\\' {
			out = append(out, '\\')
		}
		out = append(out, c)
	}
	return string(append(out, '"'))
}
