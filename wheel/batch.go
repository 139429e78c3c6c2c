package wheel

import (
	"runtime/debug"
	"sync/atomic"
)

// batchSize bounds how many due entries are taken under one lock and handed over together.
const batchSize = 256

// batch is a run of due values. Any number of goroutines may run it together: each claims the next value by
// raising cursor, so a value that blocks keeps nobody from the ones behind it.
type batch[T any] struct {
	lane   *lane[T]
	vals   []T
	ended  int64 // entries that were freed; the others, periodic ones, stay
	cursor atomic.Int64
	refs   atomic.Int32
	coming atomic.Bool // a runner was put on it that has not begun yet
}

func (l *lane[T]) newBatch(n int) *batch[T] {
	b, _ := l.batches.Get().(*batch[T])
	if b == nil {
		b = &batch[T]{lane: l, vals: make([]T, 0, max(n, batchSize))}
	}
	b.coming.Store(true)
	return b
}

// run calls callbacks that nobody has claimed yet until none is left. A panic in one is reported and ends only that one.
func (b *batch[T]) run() {
	b.coming.Store(false)
	for !b.runUntilPanic() {
	}
}

func (b *batch[T]) runUntilPanic() (finished bool) {
	watch := newStopwatch(b.lane.core)
	defer func() {
		watch.lap()
		if finished {
			return
		}
		// Without a value to recover the callback has called runtime.Goexit: the goroutine goes on dying, and
		// the executor's own deferred function continues the batch on another.
		if v := recover(); v != nil {
			b.lane.core.reportPanic(v, debug.Stack())
		}
	}()
	for {
		i := b.cursor.Add(1) - 1
		if i >= int64(len(b.vals)) {
			return true
		}
		v := b.vals[i]
		var zero T
		b.vals[i] = zero
		if b.lane.core.exec.eager && i+1 < int64(len(b.vals)) && b.coming.CompareAndSwap(false, true) {
			b.lane.core.exec.accompany(b)
		}
		b.lane.fire(v)
		watch.count()
	}
}

// progress returns how many values were claimed and how many were not.
func (b *batch[T]) progress() (claimed, left int64) {
	claimed = b.cursor.Load()
	return claimed, max(0, int64(len(b.vals))-claimed)
}

// steal takes the values that nobody has claimed.
func (b *batch[T]) steal() []T {
	n := int64(len(b.vals))
	if claimed := b.cursor.Swap(n); claimed < n {
		return b.vals[claimed:]
	}
	return nil
}

func (b *batch[T]) join() { b.refs.Add(1) }

// leave gives the batch back for reuse when its last goroutine leaves.
func (b *batch[T]) leave() {
	if b.refs.Add(-1) == 0 {
		b.vals, b.ended = b.vals[:0], 0
		b.cursor.Store(0)
		b.lane.batches.Put(b)
	}
}
