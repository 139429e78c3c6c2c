package wheel

import "sync/atomic"

// maxBatch is the maximum number of due entries that are taken under one lock.
const maxBatch = 32

// batch is due entries that were taken together. All of their callbacks will be called: before a runner calls
// one of them, it appoints another runner as the worker, which helps with the rest. Each runner claims the next
// value by raising cursor, so a callback that blocks delays none behind it.
type batch[T any] struct {
	set    *shardSet[T]
	vals   []T
	cursor atomic.Int64
	refs   atomic.Int32 // runners, and one while it is open
	place  int          // in runnerPool.batches, -1 once it is closed; guarded by its mutex
}

// openBatch is a batch of values of any type.
type openBatch interface {
	retain()
	release()
	run(r *runner)
	setPlaceLocked(place int) (former int) // with the mutex of the runnerPool
}

func (s *shardSet[T]) newBatch() *batch[T] {
	b, _ := s.batches.Get().(*batch[T])
	if b == nil {
		b = &batch[T]{set: s, vals: make([]T, 0, maxBatch)}
	}
	return b
}

// callAtStop calls values as a batch although the wheel was stopped: if the call of one blocks, it delays no
// other.
func (s *shardSet[T]) callAtStop(vals []T) {
	if len(vals) > 0 {
		s.scheduler.runners.openAtStop(s.scheduler, &batch[T]{set: s, vals: vals})
	}
}

// retain is called before run.
func (b *batch[T]) retain() { b.refs.Add(1) }

// run calls callbacks until all are claimed.
func (b *batch[T]) run(r *runner) {
	defer b.release()
	n := int64(len(b.vals))
	for {
		i := b.cursor.Add(1) - 1
		if i >= n-1 {
			b.set.scheduler.runners.close(b)
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

// release gives the batch back for reuse when nothing holds it.
func (b *batch[T]) release() {
	if b.refs.Add(-1) == 0 {
		b.vals = b.vals[:0]
		b.cursor.Store(0)
		b.set.batches.Put(b)
	}
}

func (b *batch[T]) setPlaceLocked(place int) (former int) {
	former, b.place = b.place, place
	return former
}
