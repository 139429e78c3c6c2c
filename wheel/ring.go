package wheel

import (
	"math"
	"math/bits"
	"time"
)

// The ring is Netty's wheel of buckets, unrolled so that waiting costs nothing.
//
// A tick t falls into bucket t mod N of round t / N. Netty keeps N buckets and counts remainingRounds down in
// every entry of a bucket each time the wheel passes it. Here the buckets of the coming 64 rounds (near) are
// kept apart, one row a round, so that an entry is not touched again until it is due. What lies further ahead
// (far) is kept by periods of 32 rounds, again 64 of them, and moves to near during the period before its own;
// only an entry beyond all 64 periods has remainingRounds left when the far ring comes by.
//
// Each row has a bitmap of its occupied buckets and each ring one of its rows, so the next event is found in a
// few instructions however far away it is, and a stall is caught up in O(occupied buckets).
const (
	roundBits   = 6 // near: 64 rounds
	periodBits  = 5 // a period is 32 rounds
	rowsPerRing = 1 << roundBits
	rowMask     = rowsPerRing - 1

	nearRing, farRing = 0, 1

	locBucketBits = 20 // loc = ring<<26 | row<<20 | bucket
	locBucketMask = 1<<locBucketBits - 1

	// sparse is the number of entries up to which the worker wakes for each entry of a bucket; for a fuller one
	// it wakes when its tick ends. Awake for whatever reason, it takes what is due in the running tick too.
	sparse = 16

	never       = math.MaxInt64
	maxDeadline = math.MaxInt64 / 2 // 146 years; what lies beyond is kept until then
)

// ring is pure: it has no lock, goroutine or clock, and time passes only through the numbers it is given,
// all in nanoseconds since the wheel's origin.
type ring struct {
	slab
	tick       uint64 // nanoseconds
	reciprocal uint64 // 2^64 / tick, rounded up
	mask       int64  // buckets - 1
	bits       uint   // log2(buckets)

	cur      int64 // no entry is due in a tick before cur
	earliest int64 // lower bound of the next tick with an event
	farNext  int64 // the same for far events alone
	rows     [2 * rowsPerRing]*row
	used     [2]uint64 // bit set: that row of the near or far ring exists
	spare    *row

	visiting *row   // the far row whose bucket at pos is being moved
	cursor   uint32 // and the next node of it to look at
}

func (r *ring) init(tick time.Duration, buckets int) {
	r.tick = uint64(tick)
	r.reciprocal = math.MaxUint64/r.tick + 1
	r.bits = uint(bits.Len(uint(buckets - 1)))
	r.mask = 1<<r.bits - 1
	r.earliest, r.farNext = never, never
}

// tickOf is ns / tick by multiplication: the rounded-up reciprocal is at most one too high.
func (r *ring) tickOf(ns int64) int64 {
	if ns <= 0 {
		return 0
	}
	q, _ := bits.Mul64(uint64(ns), r.reciprocal)
	if q*r.tick > uint64(ns) {
		q--
	}
	return int64(q)
}

// endOf is the instant at which tick t ends.
func (r *ring) endOf(t int64) int64 { return (t + 1) * int64(r.tick) }

// visitTick is when bucket b of a far period is moved to near: some time in the period before it, spread over
// that period so that no tick has to move much.
func (r *ring) visitTick(period int64, b uint32) int64 {
	return (period-1)<<(r.bits+periodBits) + int64(b)<<periodBits
}

// remainingRounds is how often the far ring still passes an entry of the given period before its own comes.
func remainingRounds(period, current int64) int64 { return (period - current) >> roundBits }

// add allocates an entry. It returns false when the slab must be grown first. The event is the instant from
// which advance has something to do for this entry.
func (r *ring) add(now, deadline int64) (i uint32, event int64, ok bool) {
	i, ok = r.alloc()
	if !ok {
		return 0, 0, false
	}
	r.forward(now)
	n := r.node(i)
	n.deadline = deadline
	return i, r.place(i, n), true
}

// remove unlinks an entry and frees its node, reporting the chunk to drop as release does.
func (r *ring) remove(i uint32) (drop uint32, ok bool) {
	r.unlink(i, r.node(i))
	return r.release(i)
}

// reset moves an entry to another deadline. To a later one this is a store: the entry stays where it is and
// moves on when its old bucket comes up.
func (r *ring) reset(i uint32, now, deadline int64) (event int64) {
	n := r.node(i)
	if deadline >= n.deadline {
		n.deadline = deadline
		return never
	}
	r.unlink(i, n)
	r.forward(now)
	n.deadline = deadline
	return r.place(i, n)
}

// forward lets cur catch up with the time while nothing is due: the worker sleeps through empty ticks, and
// near is counted from cur.
func (r *ring) forward(now int64) {
	if t := r.tickOf(now); t > r.cur && t < r.earliest {
		r.cur = t
	}
}

// locate finds the row and bucket of tick t, and the tick of its next event.
func (r *ring) locate(t int64) (loc uint32, event int64) {
	b := uint32(t & r.mask)
	round := t >> r.bits
	if round-r.cur>>r.bits < rowsPerRing {
		return uint32(round&rowMask)<<locBucketBits | b, t
	}
	period := round >> periodBits
	return (rowsPerRing|uint32(period&rowMask))<<locBucketBits | b, r.visitTick(period, b)
}

// place links an entry by its deadline.
func (r *ring) place(i uint32, n *node) (event int64) {
	t := max(r.tickOf(n.deadline), r.cur)
	loc, at := r.locate(t)
	n.loc = loc
	rw := r.rows[loc>>locBucketBits]
	if rw == nil {
		rw = r.openRow(loc >> locBucketBits)
	}
	rw.push(&r.slab, loc&locBucketMask, i, n)
	r.earliest = min(r.earliest, at)
	if loc>>locBucketBits < rowsPerRing {
		return n.deadline
	}
	r.farNext = min(r.farNext, at)
	switch period := t >> (r.bits + periodBits); {
	case period < rw.period:
		rw.later, rw.period = min(rw.later, rw.period), period
	case period > rw.period:
		rw.later = min(rw.later, period)
	}
	return at * int64(r.tick)
}

func (r *ring) openRow(k uint32) *row {
	rw := r.spare
	if r.spare = nil; rw == nil {
		rw = newRow(int(r.mask) + 1)
	}
	rw.period, rw.later, rw.pos = never, never, 0
	r.rows[k] = rw
	r.used[k>>roundBits] |= 1 << (k & rowMask)
	return rw
}

func (r *ring) closeRow(k uint32) {
	r.spare, r.rows[k] = r.rows[k], nil
	r.used[k>>roundBits] &^= 1 << (k & rowMask)
}

func (r *ring) unlink(i uint32, n *node) {
	if i == r.cursor {
		r.cursor = n.next
	}
	k := n.loc >> locBucketBits
	rw := r.rows[k]
	rw.unlink(&r.slab, n.loc&locBucketMask, n)
	if rw.used == 0 {
		r.closeRow(k)
	}
}

// nextNear returns the first tick with an occupied near bucket.
func (r *ring) nextNear() int64 {
	round := r.cur >> r.bits
	ahead := bits.RotateLeft64(r.used[nearRing], -int(round&rowMask))
	from := uint32(r.cur & r.mask)
	for ahead != 0 {
		skip := bits.TrailingZeros64(ahead)
		if skip > 0 {
			from = 0
		}
		if b, ok := r.rows[(round+int64(skip))&rowMask].nextOccupied(from); ok {
			return (round+int64(skip))<<r.bits | int64(b)
		}
		ahead &= ahead - 1
	}
	return never
}

// nextFar returns the first tick at which a far bucket must be visited, and its row.
func (r *ring) nextFar() (tick int64, rw *row) {
	tick = never
	for set := r.used[farRing]; set != 0; set &= set - 1 {
		candidate := r.rows[rowsPerRing+bits.TrailingZeros64(set)]
		if at := r.nextVisit(candidate); at < tick {
			tick, rw = at, candidate
		}
	}
	return tick, rw
}

func (r *ring) nextVisit(rw *row) int64 {
	b, ok := rw.nextOccupied(rw.pos)
	if !ok { // this revolution is over; what is left belongs to a later one
		rw.period, rw.later, rw.pos = rw.later, never, 0
		b, _ = rw.nextOccupied(0)
	}
	return r.visitTick(rw.period, b)
}

// advance lets time pass up to now and appends to due, within its capacity, entries whose deadline has come.
// They are unlinked but still allocated: the caller releases them. It looks at no more than cap(due) entries;
// more is true when it stopped for that reason.
func (r *ring) advance(now int64, due []uint32) (_ []uint32, more bool) {
	nowTick := r.tickOf(now)
	budget := cap(due)
	for budget > 0 {
		near := r.nextNear()
		if r.farNext <= min(near, nowTick) {
			far, rw := r.nextFar()
			r.farNext = far
			if far <= min(near, nowTick) {
				r.cur = max(r.cur, far)
				budget = r.visit(rw, budget)
				continue
			}
		}
		if near >= nowTick {
			r.cur = max(r.cur, min(nowTick, near))
			if near == nowTick {
				due, more = r.pick(near, now, due)
			}
			r.earliest = min(r.nextNear(), r.farNext)
			return due, more
		}
		r.cur = near
		due, budget = r.drain(near, due, budget)
	}
	r.earliest = r.cur
	return due, true
}

// nearBucket returns the near bucket of tick t; an unoccupied row has none, which reads as empty.
func (r *ring) nearBucket(t int64) bucket {
	rw := r.rows[(t>>r.bits)&rowMask]
	if rw == nil {
		return bucket{}
	}
	return rw.buckets[t&r.mask]
}

// drain empties the bucket of a tick that has ended. It walks the list and cuts off what it has seen, as all of it
// leaves: no neighbour is written to.
func (r *ring) drain(t int64, due []uint32, budget int) ([]uint32, int) {
	end := r.endOf(t)
	k, b := uint32(t>>r.bits)&rowMask, uint32(t&r.mask)
	rw := r.rows[k]
	i := rw.buckets[b].head
	for ; i != 0 && budget > 0; budget-- {
		n := r.node(i)
		next := n.next
		if n.deadline < end {
			due = append(due, i)
		} else {
			r.place(i, n) // reset to a later deadline since it was linked
		}
		i = next
	}
	if rw.cut(&r.slab, b, i); rw.used == 0 {
		r.closeRow(k)
	}
	return due, budget
}

// pick takes what is already due in the tick that is still running, looking at no more than cap(due) entries.
// More is true when due is full.
func (r *ring) pick(t, now int64, due []uint32) (_ []uint32, more bool) {
	i := r.nearBucket(t).head
	for looks := cap(due); i != 0 && looks > 0 && len(due) < cap(due); looks-- {
		n := r.node(i)
		next := n.next
		if n.deadline <= now {
			r.unlink(i, n)
			due = append(due, i)
		}
		i = next
	}
	return due, i != 0 && len(due) == cap(due)
}

func (r *ring) crowded(bk bucket) bool {
	i := bk.head
	for range sparse {
		if i == 0 {
			return false
		}
		i = r.node(i).next
	}
	return i != 0
}

// visit moves the entries of a far bucket whose period has come to near. Entries with remainingRounds left stay.
func (r *ring) visit(rw *row, budget int) int {
	b, _ := rw.nextOccupied(rw.pos)
	rw.pos = b
	if r.visiting != rw || r.cursor == 0 {
		r.visiting, r.cursor = rw, rw.buckets[b].head
	}
	for ; r.cursor != 0 && budget > 0; budget-- {
		i := r.cursor
		n := r.node(i)
		if r.cursor = n.next; r.cursor == 0 {
			rw.pos = b + 1 // now: moving the last entry may end this row and begin another in its memory
		}
		t := r.tickOf(n.deadline)
		period := t >> (r.bits + periodBits)
		if loc, _ := r.locate(t); loc == n.loc && remainingRounds(period, rw.period) > 0 {
			rw.later = min(rw.later, period)
			continue
		}
		r.unlink(i, n)
		r.place(i, n)
	}
	return budget
}

// next returns the instant from which advance has something to do, never if the ring is empty.
func (r *ring) next() int64 {
	near := r.nextNear()
	if r.farNext < near {
		return r.farNext * int64(r.tick)
	}
	if near == never {
		return never
	}
	end := r.endOf(near)
	bk := r.nearBucket(near)
	if r.crowded(bk) {
		return end
	}
	at := end
	for i := bk.head; i != 0; i = r.node(i).next {
		at = min(at, r.node(i).deadline)
	}
	return at
}
