package redislock

import (
	"errors"
	"fmt"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/invalid"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Errors that a caller may have to distinguish. Match them with errors.Is. Errors of Redis and of contexts
// are wrapped; none of them is reported as ErrLocked.
var (
	// ErrLocked is returned by TryLock, and by Lock when ctx ended first, when another holds the lock.
	// The concrete error is a *LockedError.
	ErrLocked = errors.New("redislock: locked by another")

	// ErrLost means that the lock ended before it was unlocked: its lease ran out, its key was removed,
	// WithMaxHold ended it, or the wheel was stopped or full. Another may hold it since. It is the Err of the
	// Lock and the cause of its contexts, and Unlock returns it.
	ErrLost = errors.New("redislock: lock lost")

	// ErrUnconfirmed is returned by Unlock when Redis has not confirmed the release: it failed, or a second
	// has passed since ctx ended, or since the call if ctx had ended before. The lock is not held any more;
	// the release goes on in the background until it succeeds or the lease is over.
	ErrUnconfirmed = errors.New("redislock: unlock not confirmed yet, going on in the background")

	// ErrNotHeld is returned for a Lock that was unlocked before, and for a nil or zero Lock.
	ErrNotHeld = errors.New("redislock: lock not held")

	// ErrClosed is returned after the Client's Close. It is the Err of the locks that Close released.
	ErrClosed = errors.New("redislock: client closed")

	// ErrWrongKind is returned when the key does not hold a lock of this kind: a Mutex and a FairMutex are of
	// one kind, an RWMutex is of another. The key is unchanged.
	ErrWrongKind = errors.New("redislock: the key holds something else")

	// ErrMaxHold is matched, beside ErrLost, by the Err of a Lock that WithMaxHold ended.
	ErrMaxHold = errors.New("redislock: held for longer than allowed")

	// ErrUpgrade is returned by Lock, TryLock and LockFunc for writing when the context's Owner reads under
	// the same RWMutex.
	ErrUpgrade = errors.New("redislock: a reader cannot become the writer")

	// ErrNoQuorum is returned when too few servers of a Quorum answered. The lock is not held.
	ErrNoQuorum = errors.New("redislock: no majority of the servers answered")

	// ErrReplicas is returned when fewer replicas confirmed an acquisition than WithReplicas requires. The
	// lock is not held.
	ErrReplicas = errors.New("redislock: not confirmed by enough replicas")
)

// LockedError is the error of a lock that is held by another. It matches ErrLocked.
type LockedError struct {
	Name string
	TTL  time.Duration // until the hold ends unless it is renewed, as last reported; negative: never, 0: unknown
}

// Error returns the error as one line.
func (e *LockedError) Error() string {
	return fmt.Sprintf("%v: %s%s", ErrLocked, scripts.Quote(e.Name), e.forHowLong())
}

func (e *LockedError) forHowLong() string {
	switch {
	case e.TTL == 0:
		return ""
	case e.TTL < 0:
		return ", without expiry"
	}
	return fmt.Sprintf(", for up to %v", e.TTL)
}

// Unwrap returns ErrLocked.
func (e *LockedError) Unwrap() error { return ErrLocked }

// waitEnded adds the last refusal, if there was one, to the error that ended a wait.
func waitEnded(err error, locked *LockedError) error {
	if locked == nil {
		return err
	}
	return fmt.Errorf("%w; %w", err, meanwhile{locked})
}

// meanwhile is a LockedError as part of another error, which names the lock already.
type meanwhile struct{ *LockedError }

func (e meanwhile) Error() string { return "locked by another" + e.forHowLong() }
func (e meanwhile) Unwrap() error { return e.LockedError }

const argument = invalid.Package("redislock")

// checkName refuses a name under which the keys of a lock would not share a cluster slot.
func checkName(name string) error {
	refused, ok := errors.AsType[*scripts.NameError](scripts.CheckName(name))
	if !ok {
		return nil
	}
	return argument.Error("name", scripts.Quote(name), refused.Reason)
}

// errGone is the cause of a loss: Redis no longer has the key.
var errGone = errors.New("it was gone from Redis")

// lostBefore returns the error of a lock that had ended before it was released.
func lostBefore(operation, name string, cause error) error {
	if redisconn.WrongKind(cause) {
		cause = fmt.Errorf("%w: %w", ErrWrongKind, cause)
	}
	return fmt.Errorf("%w: %s %s: %w", ErrLost, operation, scripts.Quote(name), cause)
}

// unconfirmed returns the error of a release that goes on in the background.
func unconfirmed(name string, cause error) error {
	return fmt.Errorf("%w: %s: %w", ErrUnconfirmed, scripts.Quote(name), cause)
}

// operationError adds the operation and the name of the lock to an error.
func operationError(operation, name string, err error) error {
	return redisconn.OperationError("redislock", ErrWrongKind, operation, name, err)
}
