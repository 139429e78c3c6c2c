// Package httplimit is HTTP middleware on ratelimit: it rejects requests over the limit with status 429 and a
// Retry-After field, and sets the fields of draft-ietf-httpapi-ratelimit-headers-11: RateLimit-Policy on the
// response to each request that was decided or costs 0, and RateLimit where a decision was made with the
// count known. A request that its KeyFunc does not limit gets neither.
//
//	perUser := limits.Keyed("api", ratelimit.PerSecond(10).WithBurst(20))
//	mux := httplimit.New(perUser, httplimit.ByRemoteAddr)
//	http.ListenAndServe(addr, mux(handler))
//
// A request costs what perUser.AllowN costs. If that fails, the response has status 503; with the policy
// ratelimit.FailOpen it does not fail while Redis is down. If the client goes away before the decision, the
// request is not served: its status is 499, and the function of WithFailed is not called.
package httplimit

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"strconv"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/invalid"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// Limiter is what the middleware needs; *ratelimit.Keyed has it.
type Limiter interface {
	AllowN(ctx context.Context, key string, n int64) (ratelimit.Result, error)
	Limit() ratelimit.Limit
}

// KeyFunc returns the key that a request counts for, and whether it is limited at all. Any key will do, the
// empty one included. A key that is read from the request should not be left to the client: if it is missing,
// limit the request by something else, or return a key that all such requests share.
type KeyFunc func(*http.Request) (key string, limited bool)

// Option configures New. If an option is given twice, the last one counts.
type Option interface{ apply(*config) }

type option func(*config)

func (o option) apply(c *config) { o(c) }

type config struct {
	name   string
	cost   func(*http.Request) int64
	denied http.Handler
	failed func(http.ResponseWriter, *http.Request, error)
}

const argument = invalid.Package("httplimit")

// WithName sets the name of the policy in the fields: printable ASCII, default "default".
func WithName(name string) Option {
	for _, c := range []byte(name) {
		if c < ' ' || c > '~' {
			panic(argument.Error("WithName", strconv.Quote(name), "must be printable ASCII"))
		}
	}
	return option(func(c *config) { c.name = name })
}

// WithCost sets how many permits a request takes. The default is 1. A request that costs 0 passes without a
// decision. One that costs more than the burst gets status 429 without Retry-After, for it could never be
// granted. A negative cost is a failure.
func WithCost(f func(*http.Request) int64) Option {
	if f == nil {
		panic(argument.Nil("WithCost"))
	}
	return option(func(c *config) { c.cost = f })
}

// WithDenied sets the handler of denied requests. The fields are set already; for a cost above the burst only
// RateLimit-Policy is, and Retry-After is not. The default is a short text with status 429.
func WithDenied(h http.Handler) Option {
	if h == nil {
		panic(argument.Nil("WithDenied"))
	}
	return option(func(c *config) { c.denied = h })
}

// WithFailed sets the function that responds when there was no decision, for example because Redis is down
// and the policy is FailClosed. The default is a short text with status 503.
func WithFailed(f func(http.ResponseWriter, *http.Request, error)) Option {
	if f == nil {
		panic(argument.Nil("WithFailed"))
	}
	return option(func(c *config) { c.failed = f })
}

// statusClientClosedRequest is what servers log for a request whose client went away before the response; no
// client sees it.
const statusClientClosedRequest = 499

// New returns middleware that limits requests. Like the options, it panics with a *ratelimit.InvalidError on
// an argument that could only fail later: one that is nil, or a limiter whose arguments were refused or whose
// limit has no rate, period or burst. What it returns is safe for concurrent use.
func New(l Limiter, key KeyFunc, opts ...Option) func(http.Handler) http.Handler {
	check(l, key)
	cfg := config{
		name: "default",
		cost: func(*http.Request) int64 { return 1 },
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
	name := quote(cfg.name)
	m := &middleware{config: cfg, limiter: l, key: key, name: name, policy: policy(name, l.Limit())}
	return func(next http.Handler) http.Handler {
		if next == nil {
			panic(argument.Nil("handler"))
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
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

// middleware is what New makes of its arguments.
type middleware struct {
	config
	limiter Limiter
	key     KeyFunc
	name    string // as a field has it
	policy  string // the field RateLimit-Policy
}

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	key, limited := m.key(r)
	if !limited {
		next.ServeHTTP(w, r)
		return
	}
	cost := m.cost(r)
	if cost == 0 {
		w.Header().Set("RateLimit-Policy", m.policy)
		next.ServeHTTP(w, r)
		return
	}
	result, err := m.limiter.AllowN(r.Context(), key, cost)
	switch {
	case errors.Is(err, ratelimit.ErrExceedsLimit):
		w.Header().Set("RateLimit-Policy", m.policy)
		m.denied.ServeHTTP(w, r)
		return
	case err != nil && errors.Is(r.Context().Err(), context.Canceled):
		w.WriteHeader(statusClientClosedRequest)
		return
	case err != nil:
		m.failed(w, r, err)
		return
	}
	w.Header().Set("RateLimit-Policy", m.policy)
	if result.Source != ratelimit.SourceDegraded {
		w.Header().Set("RateLimit", fmt.Sprintf("%s;r=%d;t=%d", m.name, result.Remaining, seconds(result.ResetAfter)))
	}
	if !result.Allowed {
		w.Header().Set("Retry-After", strconv.FormatInt(max(1, seconds(result.RetryAfter)), 10))
		m.denied.ServeHTTP(w, r)
		return
	}
	next.ServeHTTP(w, r)
}

// policy returns the field with the quota and the window in seconds. A window that is no whole number of
// seconds is left out.
func policy(name string, l ratelimit.Limit) string {
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
