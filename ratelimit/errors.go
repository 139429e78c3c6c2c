package ratelimit

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
)

// Errors that callers can tell apart with errors.Is. They name the operation and the key. Errors of contexts
// and of Redis are wrapped. A denial is no error of Allow: see Result.Allowed.
var (
	// ErrNotSet is returned by a StoredLimiter whose limit is not set in Redis, was deleted, or has expired by
	// WithKeepAlive.
	ErrNotSet = errors.New("ratelimit: no limit is set")

	// ErrExceedsLimit is returned for a request that could never be granted. No permits were taken.
	ErrExceedsLimit = errors.New("ratelimit: request exceeds the limit")

	// ErrWouldExceedDeadline is returned for a wait or a reservation whose permits cannot come before the
	// deadline of its context, and for a reservation more than a minute ahead. No permits were taken.
	ErrWouldExceedDeadline = errors.New("ratelimit: wait would exceed the deadline")

	// ErrUnavailable is returned if Redis did not answer, or answered that it cannot serve now, and the policy
	// does not decide: it is FailClosed, or LocalShare does not know the limit, or the method has no policy. If
	// Redis was asked, the permits may have been taken. The error wraps the cause: the error of the call or of
	// its context, or, while Redis is not asked, the error of the last call.
	ErrUnavailable = errors.New("ratelimit: redis unavailable")

	// ErrMisconfigured is returned if Redis refuses this client: its user lacks a right, its password is wrong,
	// its certificate does not verify, or rdb was closed. That is not an outage: the policy does not decide,
	// and waits end. Waits that Redis has answered before endure a refused login for 30 s, in which a password may be
	// rotated. The error wraps the answer of Redis. docs/ratelimit.md has the table.
	ErrMisconfigured = errors.New("ratelimit: redis refuses this client")

	// ErrWrongKind is returned if a key in Redis holds something other than a limiter. The call did not change
	// the key.
	ErrWrongKind = errors.New("ratelimit: the key holds something else")

	// ErrClosed is returned after Client.Close, and to calls that wait then.
	ErrClosed = errors.New("ratelimit: client closed")
)

const argument = conventions.Package("ratelimit")

// callError names the operation and the limiter of a call that failed.
func callError(operation, key string, err error) error {
	return &redisconn.CallError{Package: "ratelimit", Operation: operation, Name: key, Err: err}
}

// operationError says which operation on the key an error is of; nil stays nil.
func (s *keyState) operationError(operation string, err error) error {
	if err == nil {
		return nil
	}
	return callError(operation, s.algorithm.Label(s.id.key), err)
}

// unavailableError is ErrUnavailable and its reason.
type unavailableError struct{ cause error }

func unavailable(cause error) error { return &unavailableError{cause} }

func (e *unavailableError) Error() string        { return fmt.Sprintf("%v: %v", ErrUnavailable, e.cause) }
func (e *unavailableError) Is(target error) bool { return target == ErrUnavailable }
func (e *unavailableError) Unwrap() error        { return e.cause }

// cause is the reason of an ErrUnavailable.
func cause(err error) error {
	if u, ok := errors.AsType[*unavailableError](err); ok {
		return u.cause
	}
	return err
}

// explain gives the error of a call to Redis its name. ctx is the context of the caller, if the call runs
// under it.
func explain(ctx context.Context, err error) error {
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
		return unavailable(err)
	case redisconn.Misconfigured, redisconn.LoginRefused:
		return fmt.Errorf("%w: %w", ErrMisconfigured, err)
	case redisconn.KeyFault:
		return fmt.Errorf("%w: %w", ErrWrongKind, err)
	default:
		return err
	}
}

// DebtError is the error of a Settle that used more permits than the limit lets a caller owe. For an All it counts
// requests.
type DebtError struct {
	Booked  int64 // permits of the debt that were charged
	Dropped int64 // permits that were not
}

// Error implements error.
func (e *DebtError) Error() string {
	return fmt.Sprintf("a debt of %d permits is above the bound, %d were charged", e.Booked+e.Dropped, e.Booked)
}
