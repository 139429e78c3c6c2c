package wheel

import (
	"context"
	"time"
)

// sleeper is a goroutine parked in Sleep.
type sleeper struct {
	woken chan error // capacity 1; receives once
}

func (s *sleeper) bind(Timer) {}
func (s *sleeper) fire()      { s.woken <- nil }

// Sleep blocks until d has passed, ctx is done or the wheel stops, and returns nil, ctx.Err() or ErrStopped
// respectively. It starts no goroutine and no runtime timer, and is woken like a callback, when the executor
// has a free goroutine. It returns ctx.Err() at once if ctx is done, and otherwise, for a d of zero or less,
// nil, also on a stopped wheel. It returns at once, too, with a *cogwheel.InvalidError if ctx is nil and with
// ErrTooManyPending if there is no room for the entry.
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
			return err // it is being woken: s may not be used again
		}
	}
	w.sleepers.Put(s)
	return err
}
