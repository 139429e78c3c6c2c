package wheel

import (
	"time"

	"github.com/cogwheel-go/cogwheel/internal/wheelentry/hook"
)

// notified is an entry of another package of the library. The function is called once: with nil at the
// deadline, or with ErrStopped if the wheel is stopped before.
type notified func(stopped error)

func (f notified) bind(Timer) {}
func (f notified) fire()      { f(nil) }

// stopNotice is a notified entry of a wheel that was stopped.
type stopNotice func(stopped error)

func (f stopNotice) bind(Timer) {}
func (f stopNotice) fire()      { f(ErrStopped) }

// The other packages call afterFuncOrStop by internal/wheelentry.
var _ = hook.Set(afterFuncOrStop)

func afterFuncOrStop(w *Wheel, d time.Duration, f func(stopped error)) (Timer, error) {
	return w.objects.schedule(d, notified(f))
}
