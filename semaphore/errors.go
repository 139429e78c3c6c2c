package semaphore

import (
	"errors"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
)

// Errors that callers can tell apart with errors.Is. Errors of Redis and of contexts are wrapped.
var (
	// ErrNoPermits is returned by TryAcquire if too few permits are free, or if other callers of this process,
	// with FairSemaphore of any process, wait for permits of the semaphore.
	ErrNoPermits = errors.New("semaphore: not enough permits")

	// ErrNotSet is returned if the number of permits is not set: no process has set it, or it has expired or
	// was deleted, even while the caller was waiting. See Client.Semaphore and TrySetPermits.
	ErrNotSet = errors.New("semaphore: permits are not set")

	// ErrExceedsPermits is returned for a request for more permits than exist. A Semaphore compares the
	// request with the number of permits in Redis, at each query while it waits, a CountingSemaphore
	// with WithMax. The request does not wait any longer, and delays no other request.
	ErrExceedsPermits = errors.New("semaphore: request exceeds the number of permits")

	// ErrOverRelease is returned by CountingSemaphore.Release if more permits would be free than WithMax
	// allows. No permits were added.
	ErrOverRelease = errors.New("semaphore: released more than was acquired")

	// ErrUnconfirmed is returned if Redis did not confirm a release. The Client retries the release in the
	// background. The release takes effect at most once, and the caller must not repeat it.
	ErrUnconfirmed = errors.New("semaphore: release not confirmed yet, going on in the background")

	// ErrLost means that a grant ended before its Release: its lease expired, or its permits were removed
	// from Redis. Another process may hold them. A call for permits returns it, without a grant, if the reply
	// took longer than the lease.
	ErrLost = errors.New("semaphore: permits lost")

	// ErrNotHeld is returned for a Grant that was released before, for a nil or zero Grant, and by ReleaseIDs and
	// UpdateLease for ids that are not held. A Grant that was lost before its Release, as by expiry, stays lost:
	// every call returns ErrLost.
	ErrNotHeld = errors.New("semaphore: permits not held")

	// ErrClosed is returned after Client.Close, and to calls that wait then. It is also the error of
	// grants that Close released.
	ErrClosed = errors.New("semaphore: client closed")

	// ErrWrongKind is returned if a key in Redis belongs to something else than a semaphore of this
	// kind, as far as Redis can tell (see Client.Semaphore). The call did not change the key.
	ErrWrongKind = errors.New("semaphore: the key holds something else")
)

const argument = conventions.Package("semaphore")

// named adds the operation and the name of the semaphore to ErrNotHeld or ErrClosed alone. Other errors have both.
func named(operation, name string, err error) error {
	if err == ErrNotHeld || err == ErrClosed { //nolint:errorlint // those that have a name are left as they are
		return operationError(operation, name, err)
	}
	return err
}

// operationError adds the operation and the name of the semaphore to an error.
func operationError(operation, name string, err error) error {
	return redisconn.OperationError("semaphore", ErrWrongKind, operation, name, err)
}
