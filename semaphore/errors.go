package semaphore

import (
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/invalid"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Errors that callers can tell apart with errors.Is. Errors of Redis and of contexts are wrapped.
var (
	// ErrNoPermits is returned by TryAcquire if too few permits are free, or if other callers of this process
	// wait for them.
	ErrNoPermits = errors.New("semaphore: not enough permits")

	// ErrNotSet is returned if the number of permits was never set, has expired or was deleted, also to callers
	// that wait at that time. See TrySetPermits.
	ErrNotSet = errors.New("semaphore: permits are not set")

	// ErrExceedsPermits is returned for a request for more permits than exist. A Semaphore compares it with
	// the number in Redis, a CountingSemaphore with WithMax. The request does not wait and delays no other request.
	ErrExceedsPermits = errors.New("semaphore: request exceeds the number of permits")

	// ErrOverRelease is returned by a Release after which more permits would be free than WithMax allows.
	// The Release added none.
	ErrOverRelease = errors.New("semaphore: released more than was acquired")

	// ErrUnconfirmed is returned if Redis did not confirm a release. The Client retries the release in the
	// background; it takes effect at most once. The caller must not repeat it.
	ErrUnconfirmed = errors.New("semaphore: release not confirmed yet, going on in the background")

	// ErrLost means that a grant ended before its Release: its lease expired, or its permits were removed
	// from Redis. Another process may hold them.
	ErrLost = errors.New("semaphore: permits lost")

	// ErrNotHeld is returned for permits that are not held: released or expired permits, permits of another
	// semaphore, and ids that were never granted.
	ErrNotHeld = errors.New("semaphore: permits not held")

	// ErrClosed is returned after Client.Close, and is the error of grants that Close released.
	ErrClosed = errors.New("semaphore: client closed")

	// ErrWrongKind is returned if a key holds something other than a semaphore of the kind. The call did
	// not change the key.
	ErrWrongKind = errors.New("semaphore: the key holds something else")
)

const argument = invalid.Package("semaphore")

// mustCall panics with a *cogwheel.InvalidError if a callback is nil.
func mustCall(isNil bool) {
	if isNil {
		panic(argument.Nil("function"))
	}
}

// checkName refuses a name whose derived keys would not share a cluster slot.
func checkName(name string) error {
	refused, ok := errors.AsType[*scripts.NameError](scripts.CheckName(name))
	if !ok {
		return nil
	}
	return argument.Error("name", scripts.Quote(name), refused.Reason)
}

// operationError adds the operation and the name of the semaphore to an error, and ErrWrongKind to the
// refusal of a key.
func operationError(operation, name string, err error) error {
	if scripts.WrongKind(err) || redis.HasErrorPrefix(err, "WRONGTYPE") ||
		redis.HasErrorPrefix(err, "value is not an integer") {
		return fmt.Errorf("%w: %s %s: %w", ErrWrongKind, operation, scripts.Quote(name), err)
	}
	if strings.HasPrefix(err.Error(), "semaphore: ") {
		return fmt.Errorf("%w: %s %s", err, operation, scripts.Quote(name))
	}
	return fmt.Errorf("semaphore: %s %s: %w", operation, scripts.Quote(name), err)
}
