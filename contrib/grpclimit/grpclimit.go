package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// Limiter is the limiter of a Server; *ratelimit.Limiter implements it, *ratelimit.StoredLimiter, which has no keys,
// does not. It must be safe for concurrent use.
type Limiter interface {
	AllowN(ctx context.Context, key string, n int64) (ratelimit.Result, error)
}

// KeyFunc returns the key for which a call counts, and whether the call is limited at all. method is the full
// name, such as /package.Service/Method. A client must not escape the limit by leaving out the metadata from
// which its key is read: limit such a call by another key, or return one key for all such calls. A KeyFunc must
// be safe for concurrent use.
type KeyFunc func(ctx context.Context, method string) (key string, limited bool)

// LimitFunc returns the key for which a call counts, the limit of that key, and whether the call is limited at all.
// Limiter.Limit is the default to return, ratelimit.PerDay(0) denies the call, and the zero Limit, such as that of a
// row missing in a table, is a failure; see NewPerKey. Otherwise it is like KeyFunc.
type LimitFunc func(ctx context.Context, method string) (key string, limit ratelimit.Limit, limited bool)

// Option configures New, NewPerKey and NewAll. If an option is given twice, the last one counts.
type Option interface{ apply(*config) }

type option func(*config)

func (o option) apply(c *config) { o(c) }

type config struct {
	cost   func(ctx context.Context, method string) int64
	denied func(ctx context.Context, method string, r ratelimit.Result) error
	failed func(ctx context.Context, method string, err error) error
	fields bool
	settle bool
}

// WithCost sets how many permits a call takes; with NewAll, how many times the cost of each part. The default
// is 1. A call of cost 0 is served without a decision. A call of a cost above the burst ends with
// ResourceExhausted without RetryInfo, because it could never be granted; Stats.Failed counts it, not Stats.Denied. A
// negative cost is a failure; see WithFailed. WithCost panics if f is nil.
func WithCost(f func(ctx context.Context, method string) int64) Option {
	mustNotBeNil(f == nil, "WithCost")
	return option(func(c *config) { c.cost = f })
}

// WithDenied sets the function that returns the error of a denied call. It gets the decision, whose Parts tell which
// limits of NewAll denied the call. For a cost above the burst, which could never be granted, the Result is zero: its
// RetryAfter is 0. f cannot serve the call: if it returns nil, the call ends with the default error, ResourceExhausted
// with RetryInfo, which is left out if RetryAfter is 0 or ratelimit.Never. WithDenied panics if f is nil.
func WithDenied(f func(ctx context.Context, method string, r ratelimit.Result) error) Option {
	mustNotBeNil(f == nil, "WithDenied")
	return option(func(c *config) { c.denied = f })
}

// WithFailed sets the function for calls without a decision, for example because Redis is down and the policy
// is FailClosed. f returns the error for the client, or, unlike that of WithDenied, nil to serve the call. The default
// returns the code Unavailable without the cause. If the context of a call has ended, the call ends with the code of
// the context, and f is not called. WithFailed panics if f is nil.
func WithFailed(f func(ctx context.Context, method string, err error) error) Option {
	mustNotBeNil(f == nil, "WithFailed")
	return option(func(c *config) { c.failed = f })
}

// WithFields sends header fields with each decision: x-ratelimit-limit, x-ratelimit-remaining, and
// x-ratelimit-reset in seconds from now; with a denial also retry-after in seconds, at least 1, but not with that of a
// limit of 0. Seconds are rounded up. For several limits they describe the one with the fewest calls left. A decision
// by the policy of the client has only retry-after, a call of cost 0 or of a cost above the burst has no fields. Under
// ratelimit.WithShadow there is only x-ratelimit-would-deny: true, if the limit would have denied the call. By default
// no fields are sent.
func WithFields() Option { return option(func(c *config) { c.fields = true }) }

// WithReservation reserves the cost of a call, so that the handler can settle it when it knows the real one:
//
//	ratelimit.ReservationFromContext(ctx).Settle(context.WithoutCancel(ctx), used)
//
// If the handler does not settle it, the call costs what it has reserved. For what a settlement does, and when there
// is nothing to settle, see ratelimit.Reservation and ratelimit.Result. The limiter of New must have the method
// TryReserve of *ratelimit.Limiter, or New panics.
//
// If several of these interceptors serve a call, the context has only the Reservation of the innermost one. Use NewAll
// for several limits: its Reservation settles all of them, by a number for each.
func WithReservation() Option { return option(func(c *config) { c.settle = true }) }

// Server has the interceptors of a server. It is safe for concurrent use.
type Server struct {
	config
	key func(ctx context.Context, method string) (decide, bool)
}

type decide func(n int64) (ratelimit.Result, error)

// reserver is a Limiter whose permits can be settled.
type reserver interface {
	TryReserve(ctx context.Context, key string, n int64) (ratelimit.Result, error)
}

// New returns interceptors that limit calls by one limit for every key. It panics with a *cogwheel.InvalidError
// if an argument is nil or the limiter has an invalid argument.
func New(l Limiter, key KeyFunc, opts ...Option) *Server {
	mustNotBeNil(l == nil, "limiter")
	mustNotBeNil(key == nil, "key function")
	if made, ok := l.(interface{ Err() error }); ok && made.Err() != nil {
		panic(made.Err())
	}
	s := newServer(opts)
	allow := l.AllowN
	if s.settle {
		reserver, ok := l.(reserver)
		if !ok {
			panic(&cogwheel.InvalidError{
				Package: "grpclimit", Field: "limiter", Value: fmt.Sprintf("%T", l),
				Reason: "must have TryReserve for WithReservation",
			})
		}
		allow = reserver.TryReserve
	}
	s.key = func(ctx context.Context, method string) (decide, bool) {
		k, limited := key(ctx, method)
		return func(n int64) (ratelimit.Result, error) { return allow(ctx, k, n) }, limited
	}
	return s
}

// NewPerKey returns interceptors that limit each call by the limit that f returns with its key, such as the
// plan of a tenant. An invalid limit is a failure; see WithFailed. The limit of a key may change from one call
// to the next: see ratelimit.Limiter.With. NewPerKey panics as New does.
func NewPerKey(l *ratelimit.Limiter, f LimitFunc, opts ...Option) *Server {
	mustNotBeNil(l == nil, "limiter")
	mustNotBeNil(f == nil, "limit function")
	if err := l.Err(); err != nil {
		panic(err)
	}
	s := newServer(opts)
	s.key = func(ctx context.Context, method string) (decide, bool) {
		key, limit, limited := f(ctx, method)
		of := l.With(limit)
		return func(n int64) (ratelimit.Result, error) {
			if s.settle {
				return of.TryReserve(ctx, key, n)
			}
			return of.AllowN(ctx, key, n)
		}, limited
	}
	return s
}

// NewAll returns interceptors that limit calls by several limits each, such as those of the user and of the
// method: a call is served if all of them grant it, and otherwise none is charged. parts returns the limits of
// a call, made by Limiters of c, or none if the call is not limited. Parts that ratelimit.Client.All refuses are a
// failure; see WithFailed. parts must be safe for concurrent use. NewAll panics if an argument is nil.
func NewAll(
	c *ratelimit.Client, parts func(ctx context.Context, method string) []ratelimit.Part, opts ...Option,
) *Server {
	mustNotBeNil(c == nil, "client")
	mustNotBeNil(parts == nil, "function of parts")
	s := newServer(opts)
	s.key = func(ctx context.Context, method string) (decide, bool) {
		of := parts(ctx, method)
		if len(of) == 0 {
			return nil, false
		}
		all := c.All(of...)
		return func(n int64) (ratelimit.Result, error) {
			if s.settle {
				return all.TryReserve(ctx, n)
			}
			return all.AllowN(ctx, n)
		}, true
	}
	return s
}

func newServer(opts []Option) *Server {
	s := &Server{config: config{
		cost:   func(context.Context, string) int64 { return 1 },
		denied: func(context.Context, string, ratelimit.Result) error { return nil },
		failed: func(context.Context, string, error) error {
			return status.Error(codes.Unavailable, "rate limiter unavailable")
		},
	}}
	for _, o := range opts {
		mustNotBeNil(o == nil, "option")
		o.apply(&s.config)
	}
	return s
}

// Unary is a grpc.UnaryServerInterceptor.
func (s *Server) Unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	ctx, err := s.allow(ctx, info.FullMethod, func(md metadata.MD) error { return grpc.SetHeader(ctx, md) })
	if err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

// Stream is a grpc.StreamServerInterceptor. It limits the opening of streams, not their messages.
func (s *Server) Stream(
	srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	ctx, err := s.allow(stream.Context(), info.FullMethod, stream.SetHeader)
	if err != nil {
		return err
	}
	if s.settle {
		stream = &streamWithContext{stream, ctx}
	}
	return handler(srv, stream)
}

// streamWithContext is a stream with another context.
type streamWithContext struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // of the stream
}

func (s *streamWithContext) Context() context.Context { return s.ctx }

// allow returns the context for the handler of a call, with its reservation, or the error of a call that must not be
// served.
func (s *Server) allow(
	ctx context.Context, method string, setHeader func(metadata.MD) error,
) (context.Context, error) {
	decide, limited := s.key(ctx, method)
	if !limited {
		return ctx, nil
	}
	cost := s.cost(ctx, method)
	if cost == 0 {
		return ctx, nil
	}
	r, err := decide(cost)
	switch {
	case errors.Is(err, ratelimit.ErrExceedsLimit):
		return nil, s.deny(ctx, method, ratelimit.Result{})
	case err != nil && ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	case err != nil:
		return ctx, s.failed(ctx, method, err)
	}
	if s.fields {
		_ = setHeader(fields(r)) // it fails only if the call has sent its header already
	}
	if !r.Allowed {
		return nil, s.deny(ctx, method, r)
	}
	if r.Reservation != nil {
		ctx = ratelimit.ContextWithReservation(ctx, r.Reservation)
	}
	return ctx, nil
}

// deny returns the error of a denied call.
func (s *Server) deny(ctx context.Context, method string, r ratelimit.Result) error {
	if err := s.denied(ctx, method, r); err != nil {
		return err
	}
	if r.RetryAfter == 0 {
		return status.Error(codes.ResourceExhausted, "request exceeds the rate limit")
	}
	denial := status.New(codes.ResourceExhausted, "rate limit exceeded")
	if r.RetryAfter == ratelimit.Never {
		return denial.Err()
	}
	if with, err := denial.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(r.RetryAfter)}); err == nil {
		denial = with
	}
	return denial.Err()
}

// RetryAfter returns the delay of a denial's RetryInfo, and true. It returns false for any other error, and
// for a denial without RetryInfo, such as one of a cost above the burst or of a limit of 0.
func RetryAfter(err error) (time.Duration, bool) {
	s, ok := status.FromError(err)
	if !ok || s.Code() != codes.ResourceExhausted {
		return 0, false
	}
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration(), true
		}
	}
	return 0, false
}

func fields(r ratelimit.Result) metadata.MD {
	md := metadata.MD{}
	// The counts are not known if the policy decided, and a client must not obey a limit on trial.
	if r.Source != ratelimit.SourceDegraded && !r.Shadow {
		md.Set("x-ratelimit-limit", strconv.FormatInt(r.Limit, 10))
		md.Set("x-ratelimit-remaining", strconv.FormatInt(r.Remaining, 10))
		md.Set("x-ratelimit-reset", seconds(r.ResetAfter))
	}
	if !r.Allowed && r.RetryAfter < ratelimit.Never {
		md.Set("retry-after", seconds(max(r.RetryAfter, time.Second)))
	}
	if r.WouldDeny {
		md.Set("x-ratelimit-would-deny", "true")
	}
	return md
}

// seconds rounds up, so that a client that waits this long does not come too early.
func seconds(d time.Duration) string {
	s := int64(d / time.Second)
	if d%time.Second > 0 { // d plus a second may overflow
		s++
	}
	return strconv.FormatInt(s, 10)
}

// mustNotBeNil panics if an argument is nil: later, it could only fail for each call.
func mustNotBeNil(isNil bool, what string) {
	if isNil {
		panic(&cogwheel.InvalidError{Package: "grpclimit", Field: what, Value: "nil", Reason: "must not be nil"})
	}
}
