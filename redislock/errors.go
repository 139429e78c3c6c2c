package redislock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/invalid"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// One error per decision that a caller makes. Errors of Redis itself and of ctx are wrapped and reach the caller as they
// are: none of them is ever reported as ErrLocked.
var (
	// ErrLocked is returned by TryLock, and by Lock when ctx ended first, when another holds the lock.
	// The concrete error is a *LockedError.
	ErrLocked = errors.New("redislock: locked by another")

	// ErrLost means that the lock ended before it was unlocked: its lease ran out or its key was removed. Another may
	// hold it since. It is the Err of the Lock, the cause of its contexts, and what Unlock returns.
	ErrLost = errors.New("redislock: lock lost")

	// ErrUnconfirmed is returned by Unlock when Redis has not confirmed the release: it failed, or ctx ended a second ago. The lock is not
	// held any more; the release goes on in the background until it succeeds or the lease is over.
	ErrUnconfirmed = errors.New("redislock: unlock not confirmed yet, going on in the background")

	// ErrNotHeld is returned for a lock that its holder has unlocked already, and for a nil or zero Lock.
	ErrNotHeld = errors.New("redislock: lock not held")

	// ErrClosed is returned after the Client's Close, and ends the locks that it released.
	ErrClosed = errors.New("redislock: client closed")

	// ErrWrongKind is returned when the key holds something else than a lock of this kind. It was left alone.
	ErrWrongKind = errors.New("redislock: the key holds something else")

	// ErrMaxHold is the cause of a loss that WithMaxHold brought about.
	ErrMaxHold = errors.New("redislock: held for longer than allowed")

	// ErrUpgrade is returned to an Owner who reads and wants to write under the same RWMutex.
	ErrUpgrade = errors.New("redislock: a reader cannot become the writer")

	// ErrNoQuorum is returned when too few servers of a Quorum answered to tell who holds a lock. It is not held.
	ErrNoQuorum = errors.New("redislock: no majority of the servers answered")

	// ErrReplicas is returned when fewer replicas than WithReplicas wants confirmed an acquisition. The lock is not held.
	ErrReplicas = errors.New("redislock: not confirmed by enough replicas")

	// ErrInvalid matches every *InvalidError. Nothing was sent to Redis.
	ErrInvalid = invalid.Err
)

// LockedError tells how long the present hold lasts unless it is renewed. It matches ErrLocked.
type LockedError struct {
	Name string
	TTL  time.Duration // as Redis reported it last; negative if the key never expires, 0 if unknown
}

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

// waitEnded is why a wait ended, with the refusal that it last heard, if it heard one.
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

// InvalidError names an argument that was refused: its Package, Field, Value and Reason. It matches ErrInvalid, and is the same type in
// all packages of the library.
type InvalidError = invalid.Error

const argument = invalid.Package("redislock")

// checkName refuses a name under which the keys of a lock would not share a cluster slot.
func checkName(name string) error {
	refused, ok := errors.AsType[*scripts.NameError](scripts.CheckName(name))
	if !ok {
		return nil
	}
	return argument.Error("name", scripts.Quote(name), refused.Reason)
}

// errGone is why a lock is lost whose key Redis no longer has.
var errGone = errors.New("it was gone from Redis")

// lostBefore says that a lock had ended before its holder gave it back, and why.
func lostBefore(operation, name string, cause error) error {
	if wrongKind(cause) {
		cause = fmt.Errorf("%w: %w", ErrWrongKind, cause)
	}
	return fmt.Errorf("%w: %s %s: %w", ErrLost, operation, scripts.Quote(name), cause)
}

// unconfirmed says that a release goes on in the background, and why.
func unconfirmed(name string, cause error) error {
	return fmt.Errorf("%w: %s: %w", ErrUnconfirmed, scripts.Quote(name), cause)
}

// wrongKind reports whether Redis refused a key because it holds something else than a lock of the kind.
func wrongKind(err error) bool {
	return scripts.WrongKind(err) || redis.HasErrorPrefix(err, "WRONGTYPE")
}

// operationError says which operation failed on which lock, and gives Redis' refusals of a key their name.
func operationError(operation, name string, err error) error {
	if wrongKind(err) {
		return fmt.Errorf("%w: %s %s: %w", ErrWrongKind, operation, scripts.Quote(name), err)
	}
	if strings.HasPrefix(err.Error(), "redislock: ") {
		return fmt.Errorf("%w: %s %s", err, operation, scripts.Quote(name))
	}
	return fmt.Errorf("redislock: %s %s: %w", operation, scripts.Quote(name), err)
}
