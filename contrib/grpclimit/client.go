package grpclimit

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// Waiter is the limiter of a Client; *ratelimit.Limiter implements it, *ratelimit.StoredLimiter, which has no keys,
// does not. It must be safe for concurrent use.
type Waiter interface {
	WaitN(ctx context.Context, key string, n int64) error
}

// Client has the interceptors of a client. They wait for the limit before a call is sent. It is safe for
// concurrent use.
type Client struct {
	limiter Waiter
	key     KeyFunc
}

// NewClient returns interceptors that wait for one permit of the key of a call, and then send the call. A call that is
// not limited is sent at once. key gets the context of the caller; it may be, for example, ByMethod. ByPeer and
// ByMetadata read the call that a server handles: outside of a handler, ByPeer limits no call, and ByMetadata returns
// the empty key for all. NewClient panics with a *cogwheel.InvalidError if an argument is nil or the limiter has an
// invalid argument.
//
// A call whose wait fails is not sent. Its code is that of the context if the context has ended, DeadlineExceeded if
// the permit cannot come before the deadline, and otherwise Unavailable, with the cause in the message. While Redis is
// down and the policy is FailClosed, calls wait until their contexts end.
func NewClient(l Waiter, key KeyFunc) *Client {
	mustNotBeNil(l == nil, "limiter")
	mustNotBeNil(key == nil, "key function")
	if made, ok := l.(interface{ Err() error }); ok && made.Err() != nil {
		panic(made.Err())
	}
	return &Client{l, key}
}

// Unary is a grpc.UnaryClientInterceptor.
func (c *Client) Unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoker grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	if err := c.wait(ctx, method); err != nil {
		return err
	}
	return invoker(ctx, method, req, reply, cc, opts...)
}

// Stream is a grpc.StreamClientInterceptor. It waits for the opening of streams, not for their messages.
func (c *Client) Stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	streamer grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if err := c.wait(ctx, method); err != nil {
		return nil, err
	}
	return streamer(ctx, desc, cc, method, opts...)
}

func (c *Client) wait(ctx context.Context, method string) error {
	key, limited := c.key(ctx, method)
	if !limited {
		return nil
	}
	err := c.limiter.WaitN(ctx, key, 1)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case errors.Is(err, ratelimit.ErrWouldExceedDeadline):
		return status.Error(codes.DeadlineExceeded, "rate limit: the wait would exceed the deadline")
	}
	return status.Error(codes.Unavailable, "rate limiter: "+err.Error())
}
