package wheel

import (
	"errors"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
)

// Errors returned by the wheel. Match them with errors.Is.
var (
	// ErrStopped is returned by every scheduling call after Stop has begun, by Sleep when Stop ends it, and by
	// waits in the other packages that Stop ends.
	ErrStopped = errors.New("wheel: stopped")
	// ErrTooManyPending is returned if a new entry would exceed WithMaxPendingTimeouts. Nothing was scheduled.
	// There is room again when an entry that counts towards it fires or is stopped.
	ErrTooManyPending = errors.New("wheel: too many pending timeouts")
	// ErrNoNextTime is returned by Schedule for a schedule without an instant after now.
	ErrNoNextTime = errors.New("wheel: the schedule has no next time")
	// ErrStopFromTask is returned by Stop if a function that the same wheel is running calls it, such as a
	// callback: Stop waits for running callbacks, so it would wait for its caller. A call on another goroutine
	// for which such a function waits is not detected. The wheel keeps running.
	ErrStopFromTask = errors.New("wheel: Stop called from a callback of this wheel")
	// ErrDefaultWheel is returned by Stop on the process-wide wheel of Default, which other code may be using.
	ErrDefaultWheel = errors.New("wheel: the default wheel cannot be stopped")
)

const argument = conventions.Package("wheel")

var (
	errNilFunction error = argument.Nil("function")
	errNilContext  error = argument.Nil("context")
)
