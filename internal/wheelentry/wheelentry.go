// Package wheelentry puts entries of the library's own packages on a wheel. Unlike the entries of Wheel.AfterFunc,
// they learn that the wheel was stopped: what waits for them ends instead of waiting for ever.
package wheelentry

import (
	"time"

	"github.com/cogwheel-go/cogwheel/internal/wheelentry/hook"
	"github.com/cogwheel-go/cogwheel/wheel"
)

var afterFunc = hook.AfterFunc.(func(*wheel.Wheel, time.Duration, func(error)) (wheel.Timer, error))

// AfterFunc calls f once, unless the Timer is stopped before: with nil when d has passed, or with
// wheel.ErrStopped when w is stopped before that. In the second case f is called whatever the executor of w
// does, and the Stop of w does not return the entry. In all else AfterFunc is Wheel.AfterFunc.
func AfterFunc(w *wheel.Wheel, d time.Duration, f func(stopped error)) (wheel.Timer, error) {
	return afterFunc(w, d, f)
}
