package wheel

import (
	"errors"
	"fmt"
)

// Errors returned by the wheel. Match them with errors.Is.
var (
	// ErrStopped is returned by every scheduling call once Stop has begun.
	ErrStopped = errors.New("wheel: stopped")
	// ErrTooManyPending is returned when a new entry would exceed WithMaxPendingTimeouts.
	// Nothing was scheduled; stopping or firing an entry makes room again.
	ErrTooManyPending = errors.New("wheel: too many pending timeouts")
	// ErrNilFunc is returned when the callback, task or schedule is nil.
	ErrNilFunc = errors.New("wheel: nil function")
	// ErrInvalidPeriod is returned by Every for a period of zero or less.
	ErrInvalidPeriod = errors.New("wheel: period must be positive")
	// ErrNoNextTime is returned by Schedule for a schedule that has no instant after now.
	ErrNoNextTime = errors.New("wheel: the schedule has no next time")
	// ErrStopFromTask is returned by Stop when it is called from a callback of the same wheel:
	// Stop waits for running callbacks, so it would wait for its own caller. The wheel keeps running.
	ErrStopFromTask = errors.New("wheel: Stop called from a callback of this wheel")
	// ErrDefaultWheel is returned by Stop on the process-wide wheel of Default, which others may be using.
	ErrDefaultWheel = errors.New("wheel: the default wheel cannot be stopped")
	// ErrInvalidOption is matched by every *OptionError.
	ErrInvalidOption = errors.New("wheel: invalid option")
)

// OptionError tells which option New refused and why.
type OptionError struct {
	Option string // the option's name, for example "WithTickDuration"
	Value  any    // the value it was given
	Reason string
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("wheel: %s(%v): %s", e.Option, e.Value, e.Reason)
}

// Is makes errors.Is(err, ErrInvalidOption) true.
func (e *OptionError) Is(target error) bool { return target == ErrInvalidOption }
