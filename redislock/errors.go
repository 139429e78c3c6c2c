package redislock

import (
	"errors"
	"fmt"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Errors that callers can tell apart with errors.Is. Errors of Redis and of contexts are wrapped. An error of
// Redis does not match ErrLocked.
var (
	// ErrLocked is returned by TryLock if the lock is held, and by Lock if ctx ends while the lock is held.
	// errors.As finds a *LockedError.
	ErrLocked = errors.New("redislock: locked by another")

	// ErrLost means that the lock ended before it was unlocked: its lease ran out, its key was removed,
	// WithMaxHold ended it, or the wheel was stopped. Another process may hold it now. ErrLost is
	// matched by the Err of the Lock, by the cause of its contexts, and by the errors of Unlock and Extend. For an
	// Owner, Lock and TryLock return it until the lost hold is unlocked: see ContextWithOwner.
	ErrLost = errors.New("redislock: lock lost")

	// ErrUnconfirmed is returned by Unlock if Redis did not confirm the release, or did not confirm it within a
	// second after the end of ctx (after the call, if ctx had ended before). The lock is no longer held. The
	// Client retries the release in the background until it succeeds or the lease ends.
	ErrUnconfirmed = errors.New("redislock: unlock not confirmed yet, going on in the background")

	// ErrNotHeld is returned for a Lock that was unlocked before, and for a nil or zero Lock. A Lock that was
	// lost before it was unlocked stays lost: every call returns ErrLost.
	ErrNotHeld = errors.New("redislock: lock not held")

	// ErrClosed is returned after Client.Close, and to calls that wait then. It is also the Err of locks that
	// Close released.
	ErrClosed = errors.New("redislock: client closed")

	// ErrWrongKind is returned if the key does not hold a lock of this form. A Mutex and a FairMutex share one form,
	// both sides of an RWMutex another, and a Mutex with WithStringKey has a third. The key is unchanged.
	ErrWrongKind = errors.New("redislock: the key holds something else")

	// ErrMaxHold is matched, beside ErrLost, by the Err of a Lock that WithMaxHold ended.
	ErrMaxHold = errors.New("redislock: held for longer than allowed")

	// ErrUpgrade is returned by Lock, TryLock and LockFunc for writing if the Owner of the context holds the
	// same RWMutex for reading.
	ErrUpgrade = errors.New("redislock: a reader cannot become the writer")

	// ErrNoQuorum is returned if too few servers of a Quorum answered. The lock is not held.
	ErrNoQuorum = errors.New("redislock: no majority of the servers answered")

	// ErrReplicas is returned if fewer replicas confirmed an acquisition than WithReplicas requires. The lock
	// is not held.
	ErrReplicas = errors.New("redislock: not confirmed by enough replicas")
)

// LockedError is the error for a lock that another caller holds. It matches ErrLocked.
type LockedError struct {
	Name string

	// TTL is the time until the hold ends unless it is renewed, as last reported; negative: never, 0: unknown. If a
	// FairMutex is free and others wait, it is the time until the first of them may be skipped.
	TTL time.Duration

	here bool // the Client of the refused call holds the lock
}

// Error returns the error as one line.
func (e *LockedError) Error() string {
	return fmt.Sprintf("redislock: %s: %s%s", e.byWhom(), scripts.Quote(e.Name), e.forHowLong())
}

// byWhom names the Client if it holds the lock itself: its caller may wait for itself.
func (e *LockedError) byWhom() string {
	if e.here {
		return "locked by another call of this Client"
	}
	return "locked by another"
}

func (e *LockedError) forHowLong() string {
	switch {
	case e.TTL == 0:
		return ""
	case e.TTL < 0:
		return ", without expiry"
	}
	if e.TTL >= time.Second {
		return fmt.Sprintf(", for up to %v", e.TTL.Round(100*time.Millisecond))
	}
	return fmt.Sprintf(", for up to %v", e.TTL)
}

// Unwrap returns ErrLocked.
func (e *LockedError) Unwrap() error { return ErrLocked }

// waitEnded joins the last refusal, if there was one, to the error that ended a wait.
func waitEnded(err error, locked *LockedError) error {
	if locked == nil {
		return err
	}
	return fmt.Errorf("%w; %w", err, meanwhile{locked})
}

// meanwhile is a LockedError inside another error, which already names the lock.
type meanwhile struct{ *LockedError }

func (e meanwhile) Error() string { return e.byWhom() + e.forHowLong() }
func (e meanwhile) Unwrap() error { return e.LockedError }

const argument = conventions.Package("redislock")

// errMinHold refuses the option for the kinds whose release does not keep the key.
var errMinHold = argument.Error("option", "WithMinHold",
	"only a lock of Client.Mutex without WithStringKey has a minimum hold")

// errStringKey refuses the option for the kinds that other libraries do not have.
var errStringKey = argument.Error("option", "WithStringKey",
	"only a lock of Client.Mutex or Client.MultiMutex has a string key")

// errGone is the cause of a loss that Redis reported: the key is gone.
var errGone = errors.New("it was gone from Redis")

// lostBefore returns the error for a lock that had ended before its release.
func lostBefore(operation, name string, cause error) error {
	if redisconn.WrongKind(cause) {
		cause = fmt.Errorf("%w: %w", ErrWrongKind, cause)
	}
	return fmt.Errorf("%w: %s %s: %w", ErrLost, operation, scripts.Quote(name), cause)
}

// unconfirmed returns the error for a release that continues in the background.
func unconfirmed(name string, cause error) error {
	return fmt.Errorf("%w: %s: %w", ErrUnconfirmed, scripts.Quote(name), cause)
}

// named adds the operation and the name of the lock to ErrNotHeld or ErrClosed alone. Other errors have both.
func named(operation, name string, err error) error {
	if err == ErrNotHeld || err == ErrClosed { //nolint:errorlint // those that have a name are left as they are
		return operationError(operation, name, err)
	}
	return err
}

// operationError adds the operation and the name of the lock to an error.
func operationError(operation, name string, err error) error {
	return redisconn.OperationError("redislock", ErrWrongKind, operation, name, err)
}
