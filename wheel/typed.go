package wheel

import (
	"context"
	"time"
)

// Typed is a wheel whose entries are values of one type for one function, so no entry needs a closure: if T has no
// pointers, the garbage collector does not scan pending entries. A Typed is a separate wheel with its own goroutines:
// make one for each kind of value, and use a Wheel beside it for Every, Sleep and WithTimeout. A process in which
// more than 64 wheels run logs a warning. The methods are safe for concurrent use.
type Typed[T any] struct {
	scheduler *scheduler
	shards    *shardSet[T]
}

// NewTyped makes a wheel that calls fire with each value at its deadline. The options are those of New. It
// returns a *cogwheel.InvalidError if fire is nil or an option is invalid.
func NewTyped[T any](fire func(T), opts ...Option) (*Typed[T], error) {
	if fire == nil {
		return nil, errNilFunction
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	c := newScheduler(cfg)
	return &Typed[T]{scheduler: c, shards: newShardSet(c, fire)}, nil
}

// Add schedules v: the wheel calls the function of NewTyped with it once, when d has passed, or as soon as
// possible if d is zero or less. The returned Timer can stop the entry or move its deadline. A value may be
// added any number of times; each call adds an entry.
//
// Add returns ErrStopped after Stop was called, and ErrTooManyPending if WithMaxPendingTimeouts is reached;
// then nothing is scheduled. It is safe for concurrent use, also inside the function of NewTyped. It does not
// block, and allocates only when the wheel's memory has to grow.
func (w *Typed[T]) Add(v T, d time.Duration) (Timer, error) { return w.shards.schedule(d, v) }

// Len returns the number of pending entries, as Wheel.Len does.
func (w *Typed[T]) Len() int { return w.scheduler.len() }

// UnprocessedValue is a value that Stop ended before it fired.
type UnprocessedValue[T any] struct {
	Value T
	Left  time.Duration // time that was left until its deadline; 0 if it was due
}

// Stop ends the wheel and returns each value that has not fired, exactly once. Wheel.Stop describes when it
// blocks and which errors it returns.
func (w *Typed[T]) Stop(ctx context.Context) ([]UnprocessedValue[T], error) {
	var rest []UnprocessedValue[T]
	add := func(v T, left time.Duration) { rest = append(rest, UnprocessedValue[T]{v, left}) }
	err := w.scheduler.shutdown(ctx, func(now int64) { w.shards.close(now, add) })
	return rest, err
}
