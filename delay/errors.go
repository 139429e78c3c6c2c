package delay

import (
	"context"
	"errors"
	"fmt"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
)

// Errors that callers can tell apart with errors.Is. Errors of Redis and of contexts are wrapped.
var (
	// ErrLost is the cause of the context of a handler whose lease has ended: another process may run the task.
	ErrLost = errors.New("delay: lease of the task lost")

	// ErrServing is returned by Serve if this Client serves the queue already.
	ErrServing = errors.New("delay: the queue is being served")

	// ErrClosed is returned after Client.Close.
	ErrClosed = errors.New("delay: client closed")

	// ErrWrongKind is returned if a key in Redis belongs to something else. The call did not change the key.
	ErrWrongKind = errors.New("delay: the key holds something else")
)

// errUnrecorded is the error of a Serve that Redis has not answered after its end.
var errUnrecorded = fmt.Errorf("ends of attempts were not recorded within a lease: %w", context.DeadlineExceeded)

// Fail marks an error with which a handler fails its task for good: no attempt follows, whatever WithRetry says, also
// if Serve is ending. The handler may wrap the result. Its text and what errors.Is and errors.As find in it are those
// of err. Fail returns nil if err is nil. It does not block and is safe for concurrent use.
func Fail(err error) error {
	if err == nil {
		return nil
	}
	return &finalError{err}
}

type finalError struct{ error }

func (e *finalError) Unwrap() error { return e.error }

func isFinal(err error) bool {
	var final *finalError
	return errors.As(err, &final)
}

const argument = conventions.Package("delay")

// operationError adds the operation and the name of the queue to an error.
func operationError(operation, name string, err error) error {
	return redisconn.OperationError("delay", ErrWrongKind, operation, name, err)
}
