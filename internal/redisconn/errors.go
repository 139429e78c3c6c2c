package redisconn

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// MayHaveExecuted reports whether a failed call may have executed, wholly or in part, or may execute yet. So may one
// whose answer is not in the table of classes: a proxy answers for a server that it has lost after the call.
func MayHaveExecuted(err error) bool {
	if text, inScript, refused := answer(err); refused {
		_, known := classOf(text, inScript)
		return !known || scripts.Interrupted(err)
	}
	var op *net.OpError
	switch {
	case strings.Contains(err.Error(), noMaster): // so nothing was dialled
		return false
	case errors.Is(err, redis.ErrClosed), errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return false
	case errors.As(err, &op) && op.Op == "dial":
		return false
	}
	return true
}

// Refused reports whether the error is an answer to the call, of the server or of something before it.
func Refused(err error) bool {
	_, _, refused := answer(err)
	return refused
}

// Migrating reports whether a cluster refused a call, or a command of its script, while the slot of its keys migrates:
// some keys have moved to the other node already, or are absent. A call that was refused as a whole was not executed. A
// script with a refused command may have written before it: see MayHaveExecuted.
func Migrating(err error) bool { return redis.IsTryAgainError(err) || scripts.Interrupted(err) }

// Transient reports whether the server refused a call for a reason that tends to pass soon, such as a
// failover, missing replicas, or a slow script. Nothing was executed.
func Transient(err error) bool {
	return Refused(err) && classify(err) == Unavailable && !MayHaveExecuted(err)
}

// Permanent reports whether the server refused a call for a reason that does not pass by itself. Then it is of no use
// to repeat the call. A refused login may pass: see LoginRefused.
func Permanent(err error) bool {
	class := classify(err)
	return Refused(err) && class != Unavailable && class != LoginRefused
}

// IsLoginRefused reports whether the server refused the login of a connection. Nothing was executed.
func IsLoginRefused(err error) bool { return classify(err) == LoginRefused }

// Passing reports whether a call failed for a reason that may pass without a change of the program: an outage, or a
// refused login.
func Passing(err error) bool { return IsUnavailable(err) || IsLoginRefused(err) }

// IsUnavailable reports whether Redis could not be reached, or answered that it cannot serve now.
func IsUnavailable(err error) bool {
	return classify(err) == Unavailable
}

// WrongKind reports whether the server refused a call because a key holds an object of another kind.
func WrongKind(err error) bool {
	return err != nil && (classify(err) == KeyFault || redis.HasErrorPrefix(err, "value is not an integer"))
}

// CallError names the operation and the object of a failed call. Its text, one line, is made by Error and not before: a
// limiter may refuse millions of calls a second.
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

// OperationError returns a CallError. If WrongKind(err), the CallError wraps wrongKind too.
func OperationError(pkg string, wrongKind error, operation, name string, err error) error {
	if WrongKind(err) {
		err = fmt.Errorf("%w: %w", wrongKind, err)
	}
	return &CallError{pkg, operation, name, err}
}
