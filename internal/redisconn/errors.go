package redisconn

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// MayHaveExecuted reports whether a call that failed may have been executed, wholly or in part, or may execute
// yet.
func MayHaveExecuted(err error) bool {
	var op *net.OpError
	switch {
	case scripts.Interrupted(err):
		return true
	case Refused(err):
		return false
	case errors.Is(err, redis.ErrClosed), errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return false
	case errors.As(err, &op) && op.Op == "dial":
		return false
	}
	return true
}

// Refused reports whether the error is an answer of the server.
func Refused(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// Migrating reports whether a cluster refused a call, or a command of its script, because some of its keys
// have moved to another node already, or are absent, while their slot migrates. A call that was refused as a
// whole was not executed; a script whose command was refused may have written before: see MayHaveExecuted.
func Migrating(err error) bool { return redis.IsTryAgainError(err) || scripts.Interrupted(err) }

// Transient reports whether the server refused a call for a reason that tends to pass soon, such as a
// failover, missing replicas, or a slow script. Nothing was executed.
func Transient(err error) bool {
	return Refused(err) && classify(err) == Unavailable && !MayHaveExecuted(err)
}

// Permanent reports whether the server refused a call for a reason that does not pass by itself. It is not
// worth repeating.
func Permanent(err error) bool { return Refused(err) && classify(err) != Unavailable }

// IsUnavailable reports whether Redis could not be reached, or says that it cannot serve now.
func IsUnavailable(err error) bool {
	return classify(err) == Unavailable
}

// WrongKind reports whether the server refused a call because a key holds something other than the call expects.
func WrongKind(err error) bool {
	return err != nil && (classify(err) == KeyFault || redis.HasErrorPrefix(err, "value is not an integer"))
}

// CallError names the operation and the object of a call that failed. Its text is one line, made when it is asked for:
// a limiter may refuse millions of calls a second.
type CallError struct {
	Package, Operation, Name string
	Err                      error
}

func (e *CallError) Error() string {
	reason := strings.TrimPrefix(e.Err.Error(), e.Package+": ")
	return fmt.Sprintf("%s: %s %s: %s", e.Package, e.Operation, scripts.Quote(e.Name), reason)
}

// Unwrap returns the error of the call.
func (e *CallError) Unwrap() error { return e.Err }

// OperationError returns a CallError. A refusal for which WrongKind is true gets wrongKind in front.
func OperationError(pkg string, wrongKind error, operation, name string, err error) error {
	if WrongKind(err) {
		err = fmt.Errorf("%w: %w", wrongKind, err)
	}
	return &CallError{pkg, operation, name, err}
}
