// Package httplimit is HTTP middleware on ratelimit: it answers 429 with Retry-After to whoever is over his limit, and tells
// everybody where he stands, in the fields RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers-11.
//
//	perUser := limits.Keyed("api", ratelimit.PerSecond(10).WithBurst(20))
//	mux := httplimit.New(perUser, httplimit.ByRemoteAddr)
//	http.ListenAndServe(addr, mux(handler))
//
// A request costs what perUser.Allow costs. If that fails, the request is answered with 503; with the policy
// ratelimit.FailOpen it does not fail.
package httplimit

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// Limiter is what the middleware needs; *ratelimit.Keyed has it.
type Limiter interface {
	AllowN(ctx context.Context, key string, n int64) (ratelimit.Result, error)
	Limit() ratelimit.Limit
}

// KeyFunc tells whose limit a request counts for. A request with an empty key is not limited.
type KeyFunc func(*http.Request) string

// ByRemoteAddr limits each IP address that connects; an IPv6 address counts as its /64 network, which one host commonly has to
// itself. Behind a proxy that is the proxy: write a KeyFunc that reads the field your proxy sets, and only there.
func ByRemoteAddr(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	if ip := net.ParseIP(host); ip != nil && ip.To4() == nil {
		return ip.Mask(net.CIDRMask(64, 128)).String()
	}
	return host
}

// Option configures New.
type Option interface{ apply(*config) }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

type config struct {
	name   string
	cost   func(*http.Request) int64
	denied http.Handler
	failed func(http.ResponseWriter, *http.Request, error)
}

// WithName sets the name of the policy in the fields. The default is "default". It panics unless it is printable ASCII.
func WithName(name string) Option {
	for _, c := range []byte(name) {
		if c < ' ' || c > '~' {
			panic("httplimit: the name of a policy must be printable ASCII")
		}
	}
	return optionFunc(func(c *config) { c.name = name })
}

// WithCost sets how many permits a request takes. The default is 1. A request that costs more than the burst gets 429
// without Retry-After, for it could never be granted.
func WithCost(f func(*http.Request) int64) Option { return optionFunc(func(c *config) { c.cost = f }) }

// WithDenied sets who writes the answer to a denied request. The fields are set already. The default is a short text with
// status 429.
func WithDenied(h http.Handler) Option { return optionFunc(func(c *config) { c.denied = h }) }

// WithFailed sets who answers when there was no decision. The default is a short text with status 503.
func WithFailed(f func(http.ResponseWriter, *http.Request, error)) Option {
	return optionFunc(func(c *config) { c.failed = f })
}

// New returns middleware that limits requests. It panics on a nil argument.
func New(l Limiter, key KeyFunc, opts ...Option) func(http.Handler) http.Handler {
	if l == nil || key == nil {
		panic("httplimit: nil limiter or key function")
	}
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
		o.apply(&cfg)
	}
	name := quote(cfg.name)
	stands := policy(name, l.Limit())
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			who := key(r)
			if who == "" {
				next.ServeHTTP(w, r)
				return
			}
			result, err := l.AllowN(r.Context(), who, cfg.cost(r))
			switch {
			case errors.Is(err, ratelimit.ErrExceedsLimit):
				w.Header().Set("RateLimit-Policy", stands)
				cfg.denied.ServeHTTP(w, r)
				return
			case err != nil:
				cfg.failed(w, r, err)
				return
			}
			w.Header().Set("RateLimit-Policy", stands)
			if result.Source != ratelimit.SourceDegraded {
				w.Header().Set("RateLimit", fmt.Sprintf("%s;r=%d;t=%d", name, result.Remaining, seconds(result.ResetAfter)))
			}
			if !result.Allowed {
				w.Header().Set("Retry-After", strconv.FormatInt(max(1, seconds(result.RetryAfter)), 10))
				cfg.denied.ServeHTTP(w, r)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// policy tells the quota and the window in seconds. A window that is no whole number of seconds cannot be told.
func policy(name string, l ratelimit.Limit) string {
	text := fmt.Sprintf("%s;q=%d", name, l.Burst)
	if l.Rate < 1 {
		return text // which every request will hear of
	}
	// Per * Burst may be beyond 64 bits.
	refill := new(big.Rat).SetFrac(big.NewInt(int64(l.Per)), new(big.Int).Mul(big.NewInt(l.Rate), big.NewInt(int64(time.Second))))
	if refill.Mul(refill, new(big.Rat).SetInt64(l.Burst)); refill.IsInt() && refill.Sign() > 0 {
		text += ";w=" + refill.Num().String()
	}
	return text
}

// seconds rounds up, so that whoever waits for it has waited long enough.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// quote writes a string of RFC 9651.
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
