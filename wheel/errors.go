package wheel

import (
	"errors"

	"github.com/cogwheel-go/cogwheel/internal/invalid"
)

// Errors returned by the wheel. Match them with errors.Is.
var (
	// ErrStopped is returned by every scheduling call once Stop has begun, and by Sleep and the waits of the
	// other packages that Stop has ended.
	ErrStopped = errors.New("wheel: stopped")
	// ErrTooManyPending is returned when a new entry would exceed WithMaxPendingTimeouts.
	// Nothing was scheduled; stopping or firing an entry makes room again.
	ErrTooManyPending = errors.New("wheel: too many pending timeouts")
	// ErrNoNextTime is returned by Schedule for a schedule that has no instant after now.
	ErrNoNextTime = errors.New("wheel: the schedule has no next time")
	// ErrStopFromTask is returned by Stop when it is called from a function that the same wheel is running,
	// such as a callback: Stop waits for running callbacks, so it would wait for its own caller. A call on
	// another goroutine for which such a function waits is not detected. The wheel keeps running.
	ErrStopFromTask = errors.New("wheel: Stop called from a callback of this wheel")
	// ErrDefaultWheel is returned by Stop on the process-wide wheel of Default, which others may be using.
	ErrDefaultWheel = errors.New("wheel: the default wheel cannot be stopped")
)

const argument = invalid.Package("wheel")

var (
	errNilFunction error = argument.Nil("function")
	errNilContext  error = argument.Nil("context")
)
