package semaphore

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cogwheel-go/cogwheel/internal/invalid"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// One error per decision that a caller makes. Errors of Redis itself and of ctx are wrapped and reach the caller as they are.
var (
	// ErrNoPermits is returned by TryAcquire of a Leased when not enough permits are free, or when others of this
	// process wait for them.
	ErrNoPermits = errors.New("semaphore: not enough permits")

	// ErrNotSet is returned when nobody has said yet how many permits there are, or when the key has expired: waiting
	// would be in vain. See TrySetPermits.
	ErrNotSet = errors.New("semaphore: permits were never set")

	// ErrExceedsPermits is returned for a request for more permits than there are, as far as that is known: for a Leased by
	// what Redis holds, for a Semaphore by WithMax. Nobody waits behind such a request.
	ErrExceedsPermits = errors.New("semaphore: more than there are")

	// ErrOverRelease is returned by Release where the permits would exceed what WithMax allows. Nothing was added.
	ErrOverRelease = errors.New("semaphore: released more than was acquired")

	// ErrUnconfirmed is returned when Redis has not confirmed a release. The release goes on in the background and takes effect
	// once: it must not be repeated.
	ErrUnconfirmed = errors.New("semaphore: release not confirmed yet, going on in the background")

	// ErrLost means that a grant ended before it was released: its lease ran out or its permits were removed. Others may
	// hold them since.
	ErrLost = errors.New("semaphore: permits lost")

	// ErrNotHeld is returned for permits that are not held: released before, expired, of another semaphore, or never granted.
	ErrNotHeld = errors.New("semaphore: permits not held")

	// ErrClosed is returned after the Client's Close, and ends the grants that it released.
	ErrClosed = errors.New("semaphore: client closed")

	// ErrWrongKind is returned when a key holds something else than a semaphore. It was left alone.
	ErrWrongKind = errors.New("semaphore: the key holds something else")

	// ErrInvalid matches every *InvalidError. Nothing was sent to Redis.
	ErrInvalid = invalid.Err
)

// InvalidError names an argument that was refused: its Package, Field, Value and Reason. It matches ErrInvalid, and is the same type in
// all packages of the library.
type InvalidError = invalid.Error

const argument = invalid.Package("semaphore")

// mustCall panics with an *InvalidError if a function that is to be called is nil: there is nobody to return it to.
func mustCall(isNil bool) {
	if isNil {
		panic(argument.Nil("function"))
	}
}

// checkName refuses a name under which the keys of a semaphore would not share a cluster slot.
func checkName(name string) error {
	refused, ok := errors.AsType[*scripts.NameError](scripts.CheckName(name))
	if !ok {
		return nil
	}
	return argument.Error("name", scripts.Quote(name), refused.Reason)
}

// operationError says which operation failed on which semaphore, and gives Redis' refusals of a key their name.
func operationError(operation, name string, err error) error {
	if scripts.WrongKind(err) || redis.HasErrorPrefix(err, "WRONGTYPE") || redis.HasErrorPrefix(err, "value is not an integer") {
		return fmt.Errorf("%w: %s %s: %w", ErrWrongKind, operation, scripts.Quote(name), err)
	}
	if strings.HasPrefix(err.Error(), "semaphore: ") {
		return fmt.Errorf("%w: %s %s", err, operation, scripts.Quote(name))
	}
	return fmt.Errorf("semaphore: %s %s: %w", operation, scripts.Quote(name), err)
}
