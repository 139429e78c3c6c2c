package wheel

import (
	"context"
	"time"
)

// Typed is a wheel whose entries are values of one type for one function, so that scheduling needs no
// closure: with a T without pointers a pending entry is invisible to the garbage collector. It is a wheel of
// its own; for Every, Sleep and WithTimeout, use a Wheel beside it. Methods are safe for concurrent use.
type Typed[T any] struct {
	scheduler *scheduler
	shards    *shardSet[T]
}

// NewTyped makes a wheel that calls fire with each value when its time has come. Options are those of New. It
// returns a *cogwheel.InvalidError if fire is nil or an option is refused.
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

// Add schedules v: the function of NewTyped is called with it once, when d has passed, or as soon as possible if d
// is zero or less. The returned Timer stops the entry or moves its deadline. The same value may be added any
// number of times; each call adds an entry.
//
// Add returns ErrStopped after Stop was called, and ErrTooManyPending if WithMaxPendingTimeouts is reached;
// then nothing is scheduled. It is safe for concurrent use, also inside the function of NewTyped. It does not
// block, and allocates only when the wheel's memory has to grow.
func (w *Typed[T]) Add(d time.Duration, v T) (Timer, error) { return w.shards.schedule(d, v) }

// Len returns the number of pending entries, as Wheel.Len does.
func (w *Typed[T]) Len() int { return w.scheduler.len() }

// UnprocessedValue is a value that Stop ended before it fired.
type UnprocessedValue[T any] struct {
	Value T
	Left  time.Duration // what was left until its deadline; 0 if it was due
}

// Stop ends the wheel and returns each value that has not fired, exactly once. When it blocks, and which
// errors it returns, is described at Wheel.Stop.
func (w *Typed[T]) Stop(ctx context.Context) ([]UnprocessedValue[T], error) {
	var rest []UnprocessedValue[T]
	add := func(v T, left time.Duration) { rest = append(rest, UnprocessedValue[T]{v, left}) }
	err := w.scheduler.shutdown(ctx, func(now int64) { w.shards.close(now, add) })
	return rest, err
}
