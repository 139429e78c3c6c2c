// Package wheelentry schedules entries of the other packages of the library, which use them instead of Wheel.AfterFunc
// and Wheel.Sleep. They have room whatever wheel.WithMaxPendingTimeouts is, so their only error is wheel.ErrStopped.
// Their callbacks are also called when the wheel is stopped, so that nothing waits for them for ever.
package wheelentry

import (
	"context"
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

// Sleep is Wheel.Sleep, except that it has room.
func Sleep(ctx context.Context, w *wheel.Wheel, d time.Duration) error {
	if err := ctx.Err(); err != nil || d <= 0 {
		return err
	}
	woken := make(chan error, 1)
	timer, err := AfterFunc(w, d, func(stopped error) { woken <- stopped })
	if err != nil {
		return err
	}
	select {
	case err := <-woken:
		return err
	case <-ctx.Done():
		timer.Stop()
		return ctx.Err()
	}
}
