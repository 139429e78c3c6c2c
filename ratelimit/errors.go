package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// One error per decision that a caller makes. A denial is no error of Allow: look at Result.Allowed.
var (
	// ErrNotConfigured is returned by a Limiter whose limit is not set in Redis, or was deleted.
	ErrNotConfigured = errors.New("ratelimit: no limit is set")

	// ErrExceedsLimit is returned for a request that could never be granted. Nothing was charged.
	ErrExceedsLimit = errors.New("ratelimit: request exceeds the limit")

	// ErrWouldExceedDeadline is returned by a wait that cannot end before its context does. Nothing was charged.
	ErrWouldExceedDeadline = errors.New("ratelimit: wait would exceed the deadline")

	// ErrUnavailable is returned when Redis did not answer and the policy is FailClosed. Whether the request was
	// charged is unknown; it counts as charged. The error wraps the reason, also while Redis is not asked.
	ErrUnavailable = errors.New("ratelimit: redis unavailable")

	// ErrMisconfigured is returned when Redis refuses this client: its user lacks a right, its password is wrong, its
	// certificate does not verify, or the client was closed. That is not an outage, so the policy does not decide, and
	// waits end. The error wraps the answer. docs/ratelimit.md has the table.
	ErrMisconfigured = errors.New("ratelimit: redis refuses this client")

	// ErrWrongKind is returned when a key holds something else than a limiter. It was left alone.
	ErrWrongKind = errors.New("ratelimit: the key holds something else")

	// ErrClosed is returned after the Client's Close, and by the waits that it ends.
	ErrClosed = errors.New("ratelimit: client closed")

	// ErrInvalid matches every *InvalidError. Nothing was sent to Redis.
	ErrInvalid = errors.New("ratelimit: invalid argument")
)

// InvalidError names an argument that was refused. It matches ErrInvalid.
type InvalidError struct {
	Field  string // what was refused, for example "Limit.Rate" or "n"
	Value  any
	Reason string // what would have been accepted
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("ratelimit: %s %v: %s", e.Field, e.Value, e.Reason)
}

// Unwrap returns ErrInvalid.
func (e *InvalidError) Unwrap() error { return ErrInvalid }

// unavailableError is ErrUnavailable and its reason.
type unavailableError struct{ cause error }

func unavailable(cause error) error { return &unavailableError{cause} }

func (e *unavailableError) Error() string        { return fmt.Sprintf("%v: %v", ErrUnavailable, e.cause) }
func (e *unavailableError) Is(target error) bool { return target == ErrUnavailable }
func (e *unavailableError) Unwrap() error        { return e.cause }

// cause is the reason of an ErrUnavailable.
func cause(err error) error {
	var u *unavailableError
	if errors.As(err, &u) {
		return u.cause
	}
	return err
}

// refusal is an answer of the server without what Redis appends to errors of scripts.
type refusal struct{ error }

func (r refusal) Error() string {
	text, _, _ := strings.Cut(r.error.Error(), " script: ")
	return text
}

func (r refusal) Unwrap() error { return r.error }

// explain gives the error of a call to Redis its name. ctx is the context of the caller alone, if it is that.
func explain(ctx context.Context, key string, err error) error {
	reason := err
	if calls.Refused(err) {
		reason = refusal{err}
	}
	switch {
	case redis.HasErrorPrefix(err, "NOTCONFIGURED"):
		return fmt.Errorf("%w: %s", ErrNotConfigured, scripts.Quote(key))
	case redis.HasErrorPrefix(err, "OLDFORM"):
		return fmt.Errorf("%w: %s: its value is that of a Redisson before 3.13.3", ErrWrongKind, scripts.Quote(key))
	}
	switch calls.Classify(ctx, err) {
	case calls.ContextEnded:
		return ctx.Err()
	case calls.Unavailable:
		return unavailable(reason)
	case calls.Misconfigured:
		return fmt.Errorf("%w: %w", ErrMisconfigured, reason)
	case calls.KeyFault:
		return fmt.Errorf("%w: %s", ErrWrongKind, scripts.Quote(key))
	default:
		return fmt.Errorf("ratelimit: %s: %w", scripts.Quote(key), reason)
	}
}
