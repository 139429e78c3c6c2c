package keys

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
)

// The errors of package ratelimit, which documents them.
var (
	ErrNotSet              = errors.New("ratelimit: no limit is set")
	ErrExceedsLimit        = errors.New("ratelimit: request exceeds the limit")
	ErrWouldExceedDeadline = errors.New("ratelimit: wait would exceed the deadline")
	ErrUnavailable         = errors.New("ratelimit: redis unavailable")
	ErrMisconfigured       = errors.New("ratelimit: redis refuses this client")
	ErrWrongKind           = errors.New("ratelimit: the key holds something else")
	ErrClosed              = errors.New("ratelimit: client closed")
)

// CallError names the operation and the limiter of a call that failed.
func CallError(operation, key string, err error) error {
	return &redisconn.CallError{Package: "ratelimit", Operation: operation, Name: key, Err: err}
}

// OperationError says which operation on the key an error is of; nil stays nil.
func (s *State) OperationError(operation string, err error) error {
	if err == nil {
		return nil
	}
	return CallError(operation, s.Algorithm.Label(s.ID.Key), err)
}

// unavailableError is errUnavailable and its reason.
type unavailableError struct{ cause error }

// Unavailable returns an ErrUnavailable with its reason.
func Unavailable(cause error) error { return &unavailableError{cause} }

func (e *unavailableError) Error() string        { return fmt.Sprintf("%v: %v", ErrUnavailable, e.cause) }
func (e *unavailableError) Is(target error) bool { return target == ErrUnavailable }
func (e *unavailableError) Unwrap() error        { return e.cause }

// cause is the reason of an errUnavailable.
func cause(err error) error {
	if u, ok := errors.AsType[*unavailableError](err); ok {
		return u.cause
	}
	return err
}

// Explain gives the error of a call to Redis its name. ctx is the context of the caller, if the call runs
// under it.
func Explain(ctx context.Context, err error) error {
	switch {
	case redis.HasErrorPrefix(err, "NOTCONFIGURED"):
		return ErrNotSet
	case redis.HasErrorPrefix(err, "OLDFORM"):
		return fmt.Errorf("%w: its value is that of a Redisson before 3.13.3", ErrWrongKind)
	}
	switch redisconn.Classify(ctx, err) {
	case redisconn.ContextEnded:
		return conventions.Cause(ctx)
	case redisconn.Unavailable:
		return Unavailable(err)
	case redisconn.Misconfigured, redisconn.LoginRefused:
		return fmt.Errorf("%w: %w", ErrMisconfigured, err)
	case redisconn.KeyFault:
		return fmt.Errorf("%w: %w", ErrWrongKind, err)
	default:
		return err
	}
}
