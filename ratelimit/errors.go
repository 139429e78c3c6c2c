package ratelimit

import (
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

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
	// charged is unknown; it counts as charged.
	ErrUnavailable = errors.New("ratelimit: redis unavailable")

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

// refusal is an answer of the server without what Redis appends to errors of scripts.
type refusal struct{ error }

func (r refusal) Error() string {
	text, _, _ := strings.Cut(r.error.Error(), " script: ")
	return text
}

func (r refusal) Unwrap() error { return r.error }

// explain gives an error of Redis its name: an answer about the key is final, anything else means that Redis is down.
func explain(key string, err error) error {
	var answer redis.Error
	switch {
	case scripts.WrongKind(err), redis.HasErrorPrefix(err, "WRONGTYPE"):
		return fmt.Errorf("%w: %s", ErrWrongKind, scripts.Quote(key))
	case redis.HasErrorPrefix(err, "NOTCONFIGURED"):
		return fmt.Errorf("%w: %s", ErrNotConfigured, scripts.Quote(key))
	case errors.As(err, &answer):
		if !passing(err) {
			return fmt.Errorf("ratelimit: %s: %w", scripts.Quote(key), refusal{err})
		}
		return fmt.Errorf("%w: %w", ErrUnavailable, refusal{err})
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// passing reports whether the server refused for a reason of its own, not of the key's.
func passing(err error) bool {
	for _, prefix := range []string{
		"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "OOM",
		"NOREPLICAS", "MISCONF", "BUSY", "NOAUTH", "NOPERM", "ERR max number of clients",
	} {
		if redis.HasErrorPrefix(err, prefix) || strings.HasPrefix(err.Error(), prefix) {
			return true
		}
	}
	return false
}
