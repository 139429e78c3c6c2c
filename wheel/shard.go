package wheel

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// shard is a ring and the values of its entries under one mutex. Producers insert, stop and reschedule directly
// under that mutex, and runners take due entries under it when they are about to call them. There is no intake
// queue, no queue of due entries and no stopped entry that waits for a sweep, so counts are exact and Stop
// frees its entry at once. Critical sections run no user code and touch at most a few hundred entries.
//
// For its handle, an entry has ended when the generation of its node is raised, under the mutex, by exactly one
// of Stop, the beginning of its callback and the wheel's Stop.
//
// next is a lower bound of the instant at which the shard has work. It is written under the mutex and read
// without it. A producer that lowers next then reads scheduler.wakeAt; the worker writes wakeAt and then reads
// every next again. Both are sequentially consistent, so one of the two sees the other's write.
type shard struct {
	mu        sync.Mutex
	ring      ring
	closed    bool
	number    uint32 // in its set
	scheduler *scheduler
	values    values
	counts    counts
	next      atomic.Int64
}

// values has the functions that a shard needs for its values.
type values interface {
	freeLocked(i uint32)
	movedLocked(i uint32)
}

func (s *shard) holdsLocked(i, gen uint32) bool {
	c := i >> chunkBits
	if int(c) >= len(s.ring.chunks) {
		return false // it was dropped
	}
	ch := s.ring.chunks[c]
	return ch != nil && ch[i&chunkMask].gen == gen
}

func (s *shard) stop(i, gen uint32) bool {
	s.mu.Lock()
	if !s.holdsLocked(i, gen) {
		s.mu.Unlock()
		return false
	}
	s.counts.stopped++
	s.endLocked(i)
	s.mu.Unlock()
	return true
}

// end frees an entry that ends without Stop.
func (s *shard) end(i, gen uint32) {
	s.mu.Lock()
	if s.holdsLocked(i, gen) {
		s.endLocked(i)
	}
	s.mu.Unlock()
}

func (s *shard) endLocked(i uint32) {
	s.ring.unlink(i, s.ring.node(i))
	s.values.freeLocked(i)
}

func (s *shard) reschedule(i, gen uint32, d time.Duration) bool {
	now := s.scheduler.time.now()
	s.mu.Lock()
	if !s.holdsLocked(i, gen) {
		s.mu.Unlock()
		return false
	}
	event, earlier := s.rescheduleLocked(i, now, d)
	s.mu.Unlock()
	if earlier {
		s.scheduler.wakeWorker(event)
	}
	return true
}

func (s *shard) rescheduleLocked(i uint32, now int64, d time.Duration) (event int64, earlier bool) {
	s.values.movedLocked(i)
	event = s.ring.reschedule(i, now, deadlineAfter(now, d))
	return event, s.lowerNextLocked(event)
}

// rearm returns an entry whose callback has ended to the ring, unless it was stopped meanwhile.
func (s *shard) rearm(i, gen uint32, now, deadline int64) {
	s.mu.Lock()
	if !s.holdsLocked(i, gen) {
		s.mu.Unlock()
		return
	}
	if n := s.ring.node(i); n.loc == locMoved {
		deadline = n.deadline
	}
	event := s.ring.move(i, now, deadline)
	earlier := s.lowerNextLocked(event)
	s.mu.Unlock()
	if earlier {
		s.scheduler.wakeWorker(event)
	}
}

func (s *shard) pending(i, gen uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holdsLocked(i, gen)
}

func (s *shard) countFired(late int64) {
	s.mu.Lock()
	s.counts.fire(time.Duration(late))
	s.mu.Unlock()
}

// lowerNextLocked lowers next to the event of a new entry. If that lowered it, the caller calls wakeWorker
// after the shard is unlocked.
func (s *shard) lowerNextLocked(event int64) (lowered bool) {
	if lowered = event < s.next.Load(); lowered {
		s.next.Store(event)
	}
	return lowered
}

// forgetStopped raises next from the deadline of a stopped entry, if the shard is empty.
func (s *shard) forgetStopped() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ring.live == 0 {
		s.ring.earliest, s.ring.farNext = never, never
		s.next.Store(never)
	}
}

// deadlineAfter returns the deadline after d. It saturates, so a delay of centuries does not overflow into the
// past.
func deadlineAfter(now int64, d time.Duration) int64 {
	if d <= 0 {
		return now
	}
	if int64(d) > maxDeadline-now {
		return maxDeadline
	}
	return now + int64(d)
}

// shardSet has the shards of one type of value: func() for AfterFunc, T for Typed[T].
type shardSet[T any] struct {
	scheduler *scheduler
	call      func(T)
	shards    []typedShard[T]
	hints     [1 << hintBits]atomic.Uint32 // the shard for goroutines, by a hash of the stack address
	batches   sync.Pool

	// bind, if set, gives a value its handle before the entry can fire.
	bind func(v T, t Timer)
	// recurs, if set, reports whether the entry of a value stays after it has fired, and whether that firing
	// counts already. It gives such a value the deadline of the firing.
	recurs func(v T, deadline int64) (stays, counts bool)
	// exempt, if set, reports whether the entry of a value has room whatever the limit is.
	exempt func(v T) bool
	// moved, if set, notifies a value of a call of Timer.Reschedule.
	moved func(v T)
	// preload, if set, loads the data behind values into the processor's caches before they are called.
	preload func(vals []T)
}

const hintBits = 6

type typedShard[T any] struct {
	shard
	set    *shardSet[T]
	chunks []*[chunkSize]T
	_      [128]byte // the next shard's mutex lies on another cache line than what every call here reads
}

func newShardSet[T any](c *scheduler, call func(T)) *shardSet[T] {
	set := &shardSet[T]{scheduler: c, call: call, shards: make([]typedShard[T], 1<<c.shardBits)}
	for k := range set.hints {
		set.hints[k].Store(uint32(k & (len(set.shards) - 1)))
	}
	all := make([]firer, len(set.shards))
	for k := range set.shards {
		s := &set.shards[k]
		s.set, s.number, s.scheduler, s.values = set, uint32(k), c, s
		s.next.Store(never)
		s.ring.init(c.ticks, c.slots)
		all[k] = s
	}
	c.attach(all)
	return set
}

func (s *typedShard[T]) base() *shard { return &s.shard }

func (s *typedShard[T]) value(i uint32) *T { return &s.chunks[i>>chunkBits][i&chunkMask] }

// freeLocked frees an entry that is in no list.
func (s *typedShard[T]) freeLocked(i uint32) {
	if s.scheduler.limit > 0 && s.set.limits(*s.value(i)) {
		s.scheduler.unreserve()
	}
	var zero T
	*s.value(i) = zero
	s.ring.release(i)
	for c, ok := s.ring.surplus(); ok; c, ok = s.ring.surplus() {
		s.chunks[c] = nil
		s.ring.drop(c)
		s.chunks = cut(s.chunks, len(s.ring.chunks))
	}
	if s.ring.live == 0 && s.scheduler.dozing.Load() {
		s.scheduler.rouse()
	}
}

func (s *typedShard[T]) movedLocked(i uint32) {
	if s.set.moved != nil {
		s.set.moved(*s.value(i))
	}
}

func (s *typedShard[T]) install(nodes *chunk, vals *[chunkSize]T) {
	c := s.ring.install(nodes)
	if int(c) == len(s.chunks) {
		s.chunks = append(s.chunks, nil)
	}
	s.chunks[c] = vals
}

// replace gives a pending entry another value and deadline, and returns its value.
func (s *typedShard[T]) replace(i, gen uint32, d time.Duration, v T) (former T, ok bool) {
	now := s.scheduler.time.now()
	s.mu.Lock()
	if !s.holdsLocked(i, gen) {
		s.mu.Unlock()
		return former, false
	}
	former, *s.value(i) = *s.value(i), v
	event, earlier := s.rescheduleLocked(i, now, d)
	s.mu.Unlock()
	if earlier {
		s.scheduler.wakeWorker(event)
	}
	return former, true
}

// take stops a pending entry and returns its value.
func (s *typedShard[T]) take(i, gen uint32) (v T, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.holdsLocked(i, gen) {
		return v, false
	}
	v = *s.value(i)
	s.counts.stopped++
	s.endLocked(i)
	return v, true
}

// peek returns the value of a pending entry.
func (s *typedShard[T]) peek(i, gen uint32) (v T, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.holdsLocked(i, gen) {
		return v, false
	}
	return *s.value(i), true
}

// schedule adds an entry. It allocates only when a shard has to grow.
func (set *shardSet[T]) schedule(d time.Duration, v T) (Timer, error) {
	c := set.scheduler
	limited := c.limit > 0 && set.limits(v)
	if limited && !c.reserve() {
		return Timer{}, ErrTooManyPending
	}
	now := c.time.now()
	deadline := deadlineAfter(now, d)
	s := set.lock()
	for !s.closed {
		if i, n, event := s.ring.add(now, deadline); n != nil {
			*s.value(i) = v
			t := Timer{shard: &s.shard, index: i, gen: n.gen}
			if set.bind != nil {
				set.bind(v, t)
			}
			earlier := s.lowerNextLocked(event)
			s.mu.Unlock()
			if earlier {
				c.wakeWorker(event)
			}
			return t, nil
		}
		s.mu.Unlock() // the allocation may have to help the garbage collector: not under the lock
		nodes, vals := new(chunk), new([chunkSize]T)
		s.mu.Lock()
		s.install(nodes, vals)
	}
	s.mu.Unlock()
	if limited {
		c.unreserve()
	}
	return Timer{}, ErrStopped
}

// limits reports whether the entry of a value counts towards the limit, if there is one.
func (set *shardSet[T]) limits(v T) bool { return set.exempt == nil || !set.exempt(v) }

// lock locks a shard. A goroutine keeps to the shard that the hash of its stack address hints at, so that its
// entries stay in its cache. When that shard is locked, the hint moves on to the next one: goroutines that
// run at the same time soon use different shards.
func (set *shardSet[T]) lock() *typedShard[T] {
	var here byte
	hint := &set.hints[uint64(uintptr(unsafe.Pointer(&here)))>>11*0x9e3779b97f4a7c15>>(64-hintBits)]
	k := hint.Load()
	if s := &set.shards[k]; s.mu.TryLock() {
		return s
	}
	k = (k + 1) & uint32(len(set.shards)-1)
	hint.Store(k)
	s := &set.shards[k]
	s.mu.Lock()
	return s
}

// fire runs the entries that are due by limit, or gives them to the caller's executor.
func (s *typedShard[T]) fire(r *runner, limit int64) {
	for more := true; more; {
		if s.scheduler.caller == nil {
			more = s.callDue(r, limit)
		} else {
			more = s.submitDue(r, limit)
		}
	}
}

// callDue runs as many entries as a runner may take at once.
func (s *typedShard[T]) callDue(r *runner, limit int64) (more bool) {
	p := &s.scheduler.runners
	s.mu.Lock()
	due, more := s.ring.take(limit, r.due[:0:p.batchSize])
	var one T
	var many *batch[T]
	switch len(due) {
	case 0:
	case 1:
		one = *s.value(due[0])
		s.beginLocked(due[0], r.now, one)
	default:
		many = s.set.newBatch()
		for _, i := range due { // a loop of loads only, so that the processor has many cache misses in flight
			many.vals = append(many.vals, *s.value(i))
		}
		for k, i := range due {
			s.beginLocked(i, r.now, many.vals[k])
		}
		if s.set.preload != nil {
			s.set.preload(many.vals)
		}
		p.open(many, r)
	}
	s.raiseNextLocked(more)
	s.mu.Unlock()
	switch len(due) {
	case 0:
	case 1:
		r.beforeCall()
		s.set.call(one)
		r.afterCall()
	default:
		many.run(r)
	}
	return more
}

// submitDue gives an entry to the caller's executor.
func (s *typedShard[T]) submitDue(r *runner, limit int64) (more bool) {
	s.mu.Lock()
	due, more := s.ring.take(limit, r.due[:0:1])
	var gen uint32
	for _, i := range due {
		s.ring.hold(i, locWaiting)
		gen = s.ring.node(i).gen
	}
	s.raiseNextLocked(more)
	s.mu.Unlock()
	for _, i := range due {
		s.scheduler.submit(s, i, gen)
	}
	return more
}

// raiseNextLocked publishes when the shard has work again. Until then next lies in the past, so other runners
// look here; taken entries must have been opened to them before.
func (s *typedShard[T]) raiseNextLocked(more bool) {
	if !more {
		s.next.Store(s.ring.next())
	}
}

// beginLocked ends an entry whose callback is about to be called, or holds a recurring entry until the callback
// has returned.
func (s *typedShard[T]) beginLocked(i uint32, now int64, v T) {
	n := s.ring.node(i)
	stays, counts := false, true
	if s.set.recurs != nil {
		stays, counts = s.set.recurs(v, n.deadline)
	}
	if counts {
		s.counts.fire(time.Duration(now - n.deadline))
	}
	if stays {
		s.ring.hold(i, locCalled)
		return
	}
	s.freeLocked(i)
}

// callWaiting calls an entry that was given to the caller's executor, unless it has ended or moved meanwhile.
func (s *typedShard[T]) callWaiting(i, gen uint32) {
	c := s.scheduler
	now := c.time.now()
	s.mu.Lock()
	if !s.holdsLocked(i, gen) || s.ring.node(i).loc != locWaiting {
		s.mu.Unlock()
		return
	}
	s.ring.unlink(i, s.ring.node(i))
	v := *s.value(i)
	s.beginLocked(i, now, v)
	c.runners.beginCall()
	s.mu.Unlock()
	defer func() {
		c.durations.record(c.time.now() - now)
		c.runners.endCall()
	}()
	s.set.call(v)
}

// close refuses further entries and passes each entry that has not begun to visit, with the time it had left.
func (set *shardSet[T]) close(now int64, visit func(v T, left time.Duration)) {
	for k := range set.shards {
		set.shards[k].close(now, visit)
	}
}

func (s *typedShard[T]) close(now int64, visit func(v T, left time.Duration)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.ring.unlinkAll(func(i uint32, n *node) {
		visit(*s.value(i), time.Duration(max(0, n.deadline-now)))
		s.freeLocked(i)
	})
	s.next.Store(never)
}
