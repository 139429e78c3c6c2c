package wheel

import "sync/atomic"

// maxBatch bounds how many due entries are taken under one lock.
const maxBatch = 32

// batch is entries that were taken together. Their callbacks will be called, whatever comes: before one of them is,
// another runner is on its way, and a runner that comes by helps. Each claims the next value by raising cursor, so a
// callback that blocks keeps none behind it waiting.
type batch[T any] struct {
	set    *shardSet[T]
	vals   []T
	cursor atomic.Int64
	refs   atomic.Int32 // runners, and one while it is open
	place  int          // in executor.batches, -1 once it was removed
}

// work is a batch, whatever its values are.
type work interface {
	join()
	leave()
	run(r *runner)
	move(place int) (from int)
}

func (s *shardSet[T]) newBatch() *batch[T] {
	b, _ := s.batches.Get().(*batch[T])
	if b == nil {
		b = &batch[T]{set: s, vals: make([]T, 0, maxBatch)}
	}
	return b
}

// join must come before run.
func (b *batch[T]) join() { b.refs.Add(1) }

// run calls callbacks until all are claimed.
func (b *batch[T]) run(r *runner) {
	defer b.leave()
	n := int64(len(b.vals))
	for {
		i := b.cursor.Add(1) - 1
		if i >= n-1 {
			b.set.scheduler.executor.close(b)
		}
		if i >= n {
			return
		}
		v := b.vals[i]
		var zero T
		b.vals[i] = zero
		r.beforeCall()
		b.set.call(v)
		r.afterCall()
	}
}

// leave gives the batch back for reuse when nothing holds it any more.
func (b *batch[T]) leave() {
	if b.refs.Add(-1) == 0 {
		b.vals = b.vals[:0]
		b.cursor.Store(0)
		b.set.batches.Put(b)
	}
}

func (b *batch[T]) move(place int) (from int) {
	from, b.place = b.place, place
	return from
}
