// Package wheelentry schedules entries whose callbacks are also called when the wheel is stopped, so that nothing
// waits for them for ever. The other packages of the library use them instead of Wheel.AfterFunc.
package wheelentry

import (
	"errors"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/wheelentry/hook"
	"github.com/cogwheel-go/cogwheel/wheel"
)

var afterFunc = hook.AfterFunc.(func(*wheel.Wheel, time.Duration, func(error)) (wheel.Timer, error))

// AfterFunc is Wheel.AfterFunc, except that f is also called when w is stopped: with nil after d, or with
// wheel.ErrStopped at the Stop of w, if that is earlier. Stop calls f even if the executor of w is blocked, and
// does not return the entry.
func AfterFunc(w *wheel.Wheel, d time.Duration, f func(stopped error)) (wheel.Timer, error) {
	return afterFunc(w, d, f)
}

// AfterFuncAnyway is AfterFunc, except that a timer of the runtime calls f if w is full. If w is stopped, it returns
// wheel.ErrStopped and does not call f.
func AfterFuncAnyway(w *wheel.Wheel, d time.Duration, f func(stopped error)) (stop func() bool, err error) {
	timer, err := AfterFunc(w, d, f)
	if errors.Is(err, wheel.ErrTooManyPending) {
		spare := time.AfterFunc(d, func() { f(nil) }) //nolint:forbidigo // there is no room on the wheel
		return spare.Stop, nil
	}
	return timer.Stop, err
}
