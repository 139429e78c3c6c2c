package wheel

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Ground rules.
//
// A shard is a ring and the values of its entries under one mutex. Producers insert, stop and reset directly
// under that mutex, and the worker takes due entries under it: there is no intake queue and no cancelled entry
// waiting to be swept, so counts are exact and Stop frees its entry at once. Critical sections run no user
// code and touch at most one batch of entries.
//
// An entry has ended for its handle the moment its node's generation is raised, under the mutex, by exactly
// one of Stop, expiry and the wheel's Stop.
//
// shard.next is a lower bound of the instant at which the shard has something to do. It is written under the
// mutex and read without it. A producer that lowers next then compares with core.wakeAt; the worker publishes
// wakeAt and then reads every next again. Both are sequentially consistent, so one of the two sees the other.
type shard struct {
	mu     sync.Mutex
	ring   ring
	closed bool
	core   *core
	values values
	counts counts
	next   atomic.Int64
}

// values is what a shard needs to know of the values beside its nodes.
type values interface {
	forget(i uint32, stopped bool) // stopped: by its handle
	drop(chunk uint32)
}

// holds reports whether the handle (i, gen) still names a pending entry. The caller holds mu.
func (s *shard) holds(i, gen uint32) bool {
	ch := s.ring.chunks[i>>chunkBits]
	return ch != nil && ch[i&chunkMask].gen == gen
}

// end frees an unlinked entry. The caller holds mu.
func (s *shard) end(i uint32, stopped bool) {
	s.values.forget(i, stopped)
	if c, ok := s.ring.release(i); ok {
		s.ring.drop(c)
		s.values.drop(c)
	}
}

func (s *shard) stop(i, gen uint32) bool {
	s.mu.Lock()
	ok := s.holds(i, gen)
	if ok {
		s.ring.unlink(i, s.ring.node(i))
		s.end(i, true)
		s.counts.stopped++
	}
	s.mu.Unlock()
	if ok {
		s.core.unreserve(1)
	}
	return ok
}

func (s *shard) reset(i, gen uint32, d time.Duration) bool {
	now := s.core.time.now()
	s.mu.Lock()
	ok := s.holds(i, gen)
	if !ok {
		s.mu.Unlock()
		return false
	}
	event := s.ring.reset(i, now, deadlineAfter(now, d))
	s.publish(event)
	return true
}

func (s *shard) pending(i, gen uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holds(i, gen)
}

// publish unlocks the shard after an event was added to it and wakes the worker if it sleeps beyond it.
func (s *shard) publish(event int64) {
	earlier := event < s.next.Load()
	if earlier {
		s.next.Store(event)
	}
	s.mu.Unlock()
	if earlier {
		s.core.kick(event)
	}
}

// deadlineAfter saturates, so that a delay of centuries is far away instead of in the past.
func deadlineAfter(now int64, d time.Duration) int64 {
	if d <= 0 {
		return now
	}
	if int64(d) > maxDeadline-now {
		return maxDeadline
	}
	return now + int64(d)
}

// lane is the shards of one type of value: func() for AfterFunc, T for Typed[T].
type lane[T any] struct {
	core    *core
	fire    func(T)
	shards  []laneShard[T]
	homes   [1 << homeBits]atomic.Uint32 // the shard that goroutines of a stack address hash use
	batches sync.Pool

	// rearm, if set, is asked for each due entry whether it stays, and until when.
	rearm func(v T, deadline, now int64) (next int64, again bool)
	// stopped, if set, is told of an entry that its handle stopped.
	stopped func(v T)
	// bind, if set, tells a value its handle before the entry can fire.
	bind func(v T, t Timer)
}

const homeBits = 6

type laneShard[T any] struct {
	shard
	lane   *lane[T]
	chunks []*[chunkSize]T
	_      [128]byte // keeps the neighbour's mutex off the cache lines that every call here reads
}

func newLane[T any](c *core, fire func(T)) *lane[T] {
	l := &lane[T]{core: c, fire: fire, shards: make([]laneShard[T], 1<<c.shardBits)}
	for k := range l.homes {
		l.homes[k].Store(uint32(k & (len(l.shards) - 1)))
	}
	expirers := make([]expirer, len(l.shards))
	for k := range l.shards {
		s := &l.shards[k]
		s.lane, s.core, s.values = l, c, s
		s.next.Store(never)
		s.ring.init(c.tick, c.buckets)
		expirers[k] = s
	}
	c.attach(expirers)
	return l
}

func (s *laneShard[T]) base() *shard { return &s.shard }

func (s *laneShard[T]) value(i uint32) *T { return &s.chunks[i>>chunkBits][i&chunkMask] }

func (s *laneShard[T]) forget(i uint32, stopped bool) {
	v := s.value(i)
	if stopped && s.lane.stopped != nil {
		s.lane.stopped(*v)
	}
	var zero T
	*v = zero
}

func (s *laneShard[T]) drop(chunk uint32) { s.chunks[chunk] = nil }

func (s *laneShard[T]) install(nodes *chunk, vals *[chunkSize]T) {
	c := s.ring.install(nodes)
	if int(c) == len(s.chunks) {
		s.chunks = append(s.chunks, nil)
	}
	s.chunks[c] = vals
}

// schedule adds an entry. It allocates only when a shard has to grow.
func (l *lane[T]) schedule(d time.Duration, v T) (Timer, error) {
	c := l.core
	if !c.reserve() {
		return Timer{}, ErrTooManyPending
	}
	now := c.time.now()
	deadline := deadlineAfter(now, d)
	s := l.lock()
	for !s.closed {
		if i, event, ok := s.ring.add(now, deadline); ok {
			*s.value(i) = v
			t := Timer{shard: &s.shard, index: i, gen: s.ring.node(i).gen}
			if l.bind != nil {
				l.bind(v, t)
			}
			s.publish(event)
			return t, nil
		}
		s.mu.Unlock() // the allocation may have to help the garbage collector: not under the lock
		nodes, vals := new(chunk), new([chunkSize]T)
		s.mu.Lock()
		s.install(nodes, vals)
	}
	s.mu.Unlock()
	c.unreserve(1)
	return Timer{}, ErrStopped
}

// lock locks a shard. A goroutine keeps to the shard that is the home of its stack address's hash, so that its entries
// stay in its cache. When another goroutine is there, that home moves on to the next shard: goroutines that run at
// the same time soon have different ones.
func (l *lane[T]) lock() *laneShard[T] {
	var here byte
	home := &l.homes[uint64(uintptr(unsafe.Pointer(&here)))>>11*0x9e3779b97f4a7c15>>(64-homeBits)]
	k := home.Load()
	if s := &l.shards[k]; s.mu.TryLock() {
		return s
	}
	k = (k + 1) & uint32(len(l.shards)-1)
	home.Store(k)
	s := &l.shards[k]
	s.mu.Lock()
	return s
}

// expire takes one batch of due entries and hands it to the executor. It reports whether more may be due.
func (s *laneShard[T]) expire(now int64, due []uint32) (more bool) {
	s.core.handover.Lock()
	b, more := s.collect(now, due)
	if b != nil {
		s.core.unreserve(b.ended)
		s.core.exec.submit(b)
	}
	s.core.handover.Unlock()
	s.core.exec.runInline()
	return more
}

func (s *laneShard[T]) collect(now int64, due []uint32) (b *batch[T], more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	due, more = s.ring.advance(now, due)
	if len(due) > 0 {
		b = s.lane.newBatch(len(due))
		for _, i := range due {
			s.take(b, i, now)
		}
	}
	if !more {
		s.next.Store(s.ring.next())
	}
	return b, more
}

// take moves the value of a due entry into the batch.
func (s *laneShard[T]) take(b *batch[T], i uint32, now int64) {
	v := *s.value(i)
	n := s.ring.node(i)
	s.counts.fire(time.Duration(now - n.deadline))
	b.vals = append(b.vals, v)
	if s.lane.rearm != nil {
		if next, again := s.lane.rearm(v, n.deadline, now); again {
			n.deadline = next
			s.ring.place(i, n)
			return
		}
	}
	s.end(i, false)
	b.ended++
}

// close refuses further entries and passes each pending one to visit with the time it had left.
func (l *lane[T]) close(now int64, visit func(v T, left time.Duration)) {
	for k := range l.shards {
		l.shards[k].close(now, visit)
	}
}

func (s *laneShard[T]) close(now int64, visit func(v T, left time.Duration)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	pending := int64(s.ring.live)
	for k := range s.ring.rows {
		for rw := s.ring.rows[k]; rw != nil; rw = s.ring.rows[k] {
			b, _ := rw.nextOccupied(0)
			i := rw.buckets[b].head
			n := s.ring.node(i)
			s.ring.unlink(i, n)
			visit(*s.value(i), time.Duration(max(0, n.deadline-now)))
			s.end(i, false)
		}
	}
	s.next.Store(never)
	s.core.unreserve(pending)
}
