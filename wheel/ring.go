package wheel

import (
	"math"
	"math/bits"
)

// The ring is Netty's wheel of buckets, unrolled so that waiting costs nothing.
//
// A tick t falls into slot t mod N of round t / N. Netty keeps one bucket for each of the N slots and counts
// remainingRounds down in every entry of a bucket each time the wheel passes it. Here the slots of the coming
// 64 rounds (near) are kept apart, one row a round, so that an entry is not touched again until it is due.
// What lies further ahead (far) is kept by periods of 32 rounds, again 64 of them, and moves to near during
// the period before its own; only an entry beyond all 64 periods has remainingRounds left when the far ring
// comes by.
//
// Each row has a bitmap of its occupied buckets and each ring one of its rows, so the next event is found in
// a few instructions however far away it is, and a stall is caught up in O(occupied buckets).
const (
	roundBits   = 6 // near: 64 rounds
	periodBits  = 5 // a period is 32 rounds
	rowsPerRing = 1 << roundBits
	rowMask     = rowsPerRing - 1

	nearRing, farRing = 0, 1

	locSlotBits = 20 // the loc of a linked node is ring<<26 | row<<20 | slot
	locSlotMask = 1<<locSlotBits - 1

	// Entries that are due and stay allocated for a while are held: linked in no row.
	locHeld    = 2 * rowsPerRing << locSlotBits
	locWaiting = locHeld     // given to the caller's executor, which has not called it yet
	locCalled  = locHeld + 1 // its callback is running; it returns to a row when that ends
	locMoved   = locHeld + 2 // the same, and Reschedule has set the deadline to which it returns

	// sparse is the number of entries up to which the worker wakes for each entry of a slot; for a fuller one
	// it wakes when its tick ends. Awake for whatever reason, it takes what is due in the running tick too.
	sparse = 16

	// takeBudget bounds how many entries one call of take looks at.
	takeBudget = 256

	never       = math.MaxInt64
	maxDeadline = math.MaxInt64 / 2 // 146 years; what lies beyond is kept until then
)

// ring is pure: it has no lock, goroutine or clock, and time passes only through the numbers it is given,
// all in nanoseconds since the wheel's origin.
type ring struct {
	slab
	ticks
	mask int64 // slots - 1
	bits uint  // log2(slots)

	cur      int64 // no entry is due in a tick before cur
	earliest int64 // lower bound of the next tick with an event
	farNext  int64 // the same for far events alone
	rows     [2 * rowsPerRing]*row
	used     [2]uint64 // bit set: that row of the near or far ring exists
	spare    *row

	visiting *row   // the far row whose bucket at pos is being moved
	visited  uint32 // and the next node of it to look at
	picked   uint32 // the next node to look at in the tick that is running
	pickedAt int64  // and the time as of which its slot is being looked through
	crowded  int64  // the last tick that was seen to have more than sparse entries
}

func (r *ring) init(t ticks, slots int) {
	r.ticks = t
	r.bits = uint(bits.Len(uint(slots - 1)))
	r.mask = 1<<r.bits - 1
	r.earliest, r.farNext, r.crowded = never, never, -1
}

// visitTick is when a slot of a far period is moved to near: some time in the period before it, spread over
// that period so that no tick has to move much.
func (r *ring) visitTick(period int64, slot uint32) int64 {
	return (period-1)<<(r.bits+periodBits) + int64(slot)<<periodBits
}

// remainingRounds is how often the far ring still passes an entry of the given period before its own comes.
func remainingRounds(period, current int64) int64 { return (period - current) >> roundBits }

// add allocates an entry. It returns false when the slab must be grown first. The event is the instant from
// which take has something to do for this entry.
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

// reschedule moves an entry to another deadline. To a later one this is a store: the entry stays where it is and
// moves on when its old slot comes up.
func (r *ring) reschedule(i uint32, now, deadline int64) (event int64) {
	n := r.node(i)
	switch {
	case n.loc == locCalled || n.loc == locMoved:
		n.deadline, n.loc = deadline, locMoved
		return never
	case n.loc != locWaiting && deadline >= n.deadline:
		n.deadline = deadline
		return never
	}
	return r.move(i, now, deadline)
}

// move links an entry anew.
func (r *ring) move(i uint32, now, deadline int64) (event int64) {
	n := r.node(i)
	r.unlink(i, n)
	r.forward(now)
	n.deadline = deadline
	return r.place(i, n)
}

// hold keeps an entry that take has returned.
func (r *ring) hold(i uint32, loc uint32) {
	r.node(i).loc = loc
}

// forward lets cur catch up with the time while nothing is due: the worker sleeps through empty ticks, and
// near is counted from cur.
func (r *ring) forward(now int64) {
	if t := r.tickOf(now); t > r.cur && t < r.earliest {
		r.cur = t
	}
}

// locate finds the row and slot of tick t.
func (r *ring) locate(t int64) (loc uint32) {
	slot := uint32(t & r.mask)
	round := t >> r.bits
	if round-r.cur>>r.bits < rowsPerRing {
		return uint32(round&rowMask)<<locSlotBits | slot
	}
	return (rowsPerRing|uint32((round>>periodBits)&rowMask))<<locSlotBits | slot
}

// place links an entry by its deadline.
func (r *ring) place(i uint32, n *node) (event int64) {
	t := max(r.tickOf(n.deadline), r.cur)
	n.loc = r.locate(t)
	k, slot := n.loc>>locSlotBits, n.loc&locSlotMask
	rw := r.rows[k]
	if rw == nil {
		rw = r.openRow(k)
	} else if rw.crowded() {
		if rw.grow(&r.slab); rw == r.visiting {
			r.visited = 0
		}
	}
	if k < rowsPerRing {
		rw.insert(&r.slab, slot, i, n)
		r.earliest = min(r.earliest, t)
		return max(n.deadline, r.firstOf(t)) // what is overdue is taken with the current tick
	}
	rw.push(&r.slab, slot, i, n)
	period := t >> (r.bits + periodBits)
	at := r.visitTick(period, slot>>rw.shift<<rw.shift)
	r.earliest, r.farNext = min(r.earliest, at), min(r.farNext, at)
	switch {
	case period < rw.period:
		rw.later, rw.period = min(rw.later, rw.period), period
	case period > rw.period:
		rw.later = min(rw.later, period)
	}
	return r.firstOf(at)
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
	switch i {
	case r.visited:
		r.visited = n.next
	case r.picked:
		r.picked = n.next
	}
	if n.loc >= locHeld {
		n.loc = 0 // only entries that are held have such a loc
		return
	}
	k := n.loc >> locSlotBits
	rw := r.rows[k]
	if rw.unlink(&r.slab, n.loc&locSlotMask, n); rw.entries == 0 {
		r.closeRow(k)
	}
}

// nextNear returns the first tick with a near entry.
func (r *ring) nextNear() int64 {
	round := r.cur >> r.bits
	ahead := bits.RotateLeft64(r.used[nearRing], -int(round&rowMask))
	if ahead == 0 {
		return never
	}
	from := uint32(r.cur & r.mask)
	skip := int64(bits.TrailingZeros64(ahead))
	if skip > 0 {
		from = 0
	}
	rw := r.rows[(round+skip)&rowMask]
	b, ok := rw.nextOccupied(from)
	if !ok {
		panic("wheel: a near row has entries before the current tick only")
	}
	slot := b
	if rw.shift > 0 {
		slot = r.node(rw.buckets[b].head).loc & locSlotMask
	}
	return (round+skip)<<r.bits | int64(slot)
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
	return r.visitTick(rw.period, b<<rw.shift)
}

// take lets time pass up to now and appends to due, within its capacity, entries whose deadline has come, in
// the order of ticks. They are unlinked but still allocated: the caller releases or holds them. More is true
// if there may be more: due is full, or one call has looked at as many entries as it may.
func (r *ring) take(now int64, due []uint32) (_ []uint32, more bool) {
	nowTick := r.tickOf(now)
	for budget := takeBudget; budget > 0 && len(due) < cap(due); {
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
		r.earliest = min(near, r.farNext)
		r.cur = max(r.cur, min(near, nowTick))
		if near > nowTick {
			return due, false
		}
		if now < r.lastOf(near) {
			return r.pick(near, now, due, budget)
		}
		due, budget = r.drain(near, due, budget)
	}
	r.earliest = r.cur
	return due, true
}

// nearRow returns the row and the loc of a near tick.
func (r *ring) nearRow(t int64) (rw *row, loc uint32) {
	k := uint32(t>>r.bits) & rowMask
	return r.rows[k], k<<locSlotBits | uint32(t&r.mask)
}

// drain takes the entries of a tick that is over. It walks the list and cuts off the nodes that it has seen
// at once, as all of them leave, instead of unlinking one after another.
func (r *ring) drain(t int64, due []uint32, budget int) ([]uint32, int) {
	rw, loc := r.nearRow(t)
	last, taken := r.lastOf(t), len(due)
	i := rw.bucket(loc & locSlotMask).head
	for ; budget > 0 && len(due) < cap(due) && i != 0; budget-- {
		n := r.node(i)
		if n.loc != loc || n.deadline > last {
			break
		}
		due = append(due, i)
		i = n.next
	}
	r.picked = 0
	rw.cut(&r.slab, loc&locSlotMask, i, len(due)-taken)
	switch {
	case rw.entries == 0:
		r.closeRow(loc >> locSlotBits)
	case i != 0 && r.node(i).loc == loc && r.node(i).deadline > last: // was rescheduled to a later time
		r.unlink(i, r.node(i))
		r.place(i, r.node(i))
		budget--
	}
	return due, budget
}

// pick takes what is already due in the tick that is still running. It goes once through the slot, however
// many calls that takes.
func (r *ring) pick(t, now int64, due []uint32, budget int) (_ []uint32, more bool) {
	rw, loc := r.nearRow(t)
	if r.picked == 0 || r.node(r.picked).loc != loc || now > r.pickedAt {
		r.picked, r.pickedAt = rw.bucket(loc&locSlotMask).head, now
	}
	for ; budget > 0 && len(due) < cap(due) && r.picked != 0; budget-- {
		i := r.picked
		n := r.node(i)
		if n.loc != loc {
			r.picked = 0
			break
		}
		r.picked = n.next
		if n.deadline <= now {
			r.unlink(i, n)
			due = append(due, i)
		}
	}
	return due, r.picked != 0
}

// visit moves the entries of a far bucket whose period has come to near. Entries with remainingRounds left
// stay.
func (r *ring) visit(rw *row, budget int) int {
	b, _ := rw.nextOccupied(rw.pos)
	rw.pos = b << rw.shift
	if r.visiting != rw || r.visited == 0 {
		r.visiting, r.visited = rw, rw.buckets[b].head
	}
	for ; r.visited != 0 && budget > 0; budget-- {
		i := r.visited
		n := r.node(i)
		if r.visited = n.next; r.visited == 0 {
			rw.pos = (b + 1) << rw.shift // now: moving the last entry may end this row and begin another in its memory
		}
		t := r.tickOf(n.deadline)
		period := t >> (r.bits + periodBits)
		if r.locate(t) == n.loc && remainingRounds(period, rw.period) > 0 {
			rw.later = min(rw.later, period)
			continue
		}
		r.unlink(i, n)
		r.place(i, n)
	}
	return budget
}

// unlinkAll unlinks every entry, those that are held last, and passes it to visit, which may release it.
func (r *ring) unlinkAll(visit func(i uint32, n *node)) {
	for half := range r.used {
		for r.used[half] != 0 {
			rw := r.rows[half<<roundBits|bits.TrailingZeros64(r.used[half])]
			b, _ := rw.nextOccupied(0)
			i := rw.buckets[b].head
			r.unlink(i, r.node(i))
			visit(i, r.node(i))
		}
	}
	for c, ch := range r.chunks {
		if ch == nil {
			continue
		}
		for k := range ch {
			if n := &ch[k]; n.loc >= locHeld {
				i := uint32(c<<chunkBits | k)
				r.unlink(i, n)
				visit(i, n)
			}
		}
	}
}

// next returns the instant from which take has something to do, never if the ring is empty.
func (r *ring) next() int64 {
	near := r.nextNear()
	if r.farNext < near {
		return r.firstOf(r.farNext)
	}
	if near == never {
		return never
	}
	last := r.lastOf(near)
	if near == r.crowded {
		return last
	}
	rw, loc := r.nearRow(near)
	at, i := last, rw.bucket(loc&locSlotMask).head
	for range sparse {
		if i == 0 || r.node(i).loc != loc {
			return max(at, r.firstOf(near))
		}
		at = min(at, r.node(i).deadline)
		i = r.node(i).next
	}
	if i != 0 && r.node(i).loc == loc {
		r.crowded, at = near, last
	}
	return max(at, r.firstOf(near))
}
