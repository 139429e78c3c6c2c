package wheel

import (
	"context"
	"time"
)

// sleeper is a goroutine that is parked in Sleep.
type sleeper struct {
	woken chan error // capacity 1; receives once
}

func (s *sleeper) bind(Timer) {}
func (s *sleeper) fire()      { s.woken <- nil }

// Sleep blocks until d has passed, ctx is done or the wheel stops. It returns nil, ctx.Err() or ErrStopped
// respectively. If ctx is done before the call, it returns ctx.Err() at once; otherwise it returns nil at once
// for a d of zero or less, also on a stopped wheel. It also returns at once with a *cogwheel.InvalidError if
// ctx is nil, and with ErrTooManyPending if WithMaxPendingTimeouts is reached.
//
// Sleep starts no goroutine and no runtime timer. It wakes when a callback would run: when the executor has a
// free goroutine. So in a callback of Inline, or in as many callbacks as a Pool has goroutines, it blocks until ctx or
// the wheel ends.
func (w *Wheel) Sleep(ctx context.Context, d time.Duration) error {
	if ctx == nil {
		return errNilContext
	}
	if err := ctx.Err(); err != nil || d <= 0 {
		return err
	}
	s, _ := w.sleepers.Get().(*sleeper)
	if s == nil {
		s = &sleeper{woken: make(chan error, 1)}
	}
	t, err := w.objects.schedule(d, s)
	if err != nil {
		w.sleepers.Put(s)
		return err
	}
	select {
	case err = <-s.woken:
	case <-ctx.Done():
		err = ctx.Err()
		if !t.Stop() {
			return err // it is being woken, so s must not be used again
		}
	}
	w.sleepers.Put(s)
	return err
}
