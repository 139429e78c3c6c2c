package wheel

import (
	"context"
	"time"
)

// Typed is a wheel whose entries are values of one type for one function, so that scheduling needs no closure:
// with a T without pointers a pending entry is invisible to the garbage collector. Methods are safe for
// concurrent use.
type Typed[T any] struct {
	core *core
	lane *lane[T]
}

// NewTyped makes a wheel that calls fire with each value when its time has come. Options and errors are those
// of New; ErrNilFunc if fire is nil.
func NewTyped[T any](fire func(T), opts ...Option) (*Typed[T], error) {
	if fire == nil {
		return nil, ErrNilFunc
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	c := newCore(cfg)
	return &Typed[T]{core: c, lane: newLane(c, fire)}, nil
}

// Schedule fires v once, at the earliest when d has passed. It does not block and, while the wheel has room,
// does not allocate. Errors: ErrStopped, ErrTooManyPending.
func (w *Typed[T]) Schedule(d time.Duration, v T) (Timer, error) { return w.lane.schedule(d, v) }

// Len returns the number of pending entries, as Wheel.Len does.
func (w *Typed[T]) Len() int { return w.core.len() }

// UnprocessedValue is a value that Stop ended before it fired.
type UnprocessedValue[T any] struct {
	Value T
	Left  time.Duration // what was left until its deadline; 0 if it was due
}

// Stop ends the wheel and returns each value that has not fired exactly once. Otherwise as Wheel.Stop.
func (w *Typed[T]) Stop(ctx context.Context) ([]UnprocessedValue[T], error) {
	var rest []UnprocessedValue[T]
	add := func(v T, left time.Duration) { rest = append(rest, UnprocessedValue[T]{v, left}) }
	err := w.core.shutdown(ctx, func(now int64) { w.lane.close(now, add) }, func(b work) {
		for _, v := range b.(*batch[T]).steal() {
			add(v, 0)
		}
	})
	return rest, err
}
