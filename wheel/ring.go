package wheel

import (
	"math"
	"math/bits"
	"time"
)

// The ring is Netty's wheel of buckets, unrolled so that waiting costs nothing.
//
// A tick t falls into slot t mod N of round t / N. Netty keeps one bucket for each of the N slots, and counts
// remainingRounds down in every entry of a bucket each time the wheel passes it. Here each of the next 64
// rounds (near) has its own slots, one row per round, so an entry is not touched again until it is due. Later
// entries (far) are kept by periods of 32 rounds, again 64 of them. They move to near during the period before
// theirs. Only an entry beyond all 64 periods has remainingRounds left when the far ring comes by.
//
// Most timers are stopped long before they are due. So an entry is young at first: it is in a short array, in
// no row, until maxYoung entries came after it or time passes.
//
// Each row has a bitmap of its occupied buckets and each ring one of its rows, so the next event is found in a
// few instructions however far away it is, and a stall is caught up in O(occupied buckets).
const (
	roundBits   = 6 // near: 64 rounds
	periodBits  = 5 // a period is 32 rounds
	rowsPerRing = 1 << roundBits
	rowMask     = rowsPerRing - 1

	nearRing, farRing = 0, 1

	locSlotBits = 20 // the loc of a linked node is ring<<26 | row<<20 | slot
	locSlotMask = 1<<locSlotBits - 1

	// Entries that are young, or due and still allocated, are held: linked in no row.
	locHeld    = 2 * rowsPerRing << locSlotBits
	locWaiting = locHeld     // given to the caller's executor, which has not called it yet
	locCalled  = locHeld + 1 // its callback is running; it returns to a row when that ends
	locMoved   = locHeld + 2 // the same, and Reschedule has set its next deadline
	locYoung   = locHeld + 3 // its prev is its place among the young

	maxYoung = 64

	// loadTicks is how many ticks are loaded together. With 1, 4 and 8, firing costs more.
	loadTicks = 2

	// sparse is the number of entries up to which the worker wakes for each entry of a slot. For a slot with
	// more, it wakes when the tick ends, and in a long tick every crowdedPause too. Whenever it is awake, it
	// also takes the due entries of the running tick. That scans all entries of the slot, so the pause grows
	// with them.
	sparse          = 16
	crowdedPause    = int64(10 * time.Millisecond)
	crowdedPerEntry = int64(time.Microsecond)

	// takeBudget is the maximum number of entries that one call of take looks at.
	takeBudget = 256

	never       = math.MaxInt64
	maxDeadline = math.MaxInt64 / 2 // 146 years; later deadlines become this one
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
	loaded   int64  // the last tick that was loaded

	youngAt int64            // lower bound of the deadlines of the young
	youngs  uint32           // how many places of young are in use
	young   [maxYoung]uint32 // sorted by arrival; 0 where one has left
}

func (r *ring) init(t ticks, slots int) {
	r.ticks = t
	r.bits = uint(bits.Len(uint(slots - 1)))
	r.mask = 1<<r.bits - 1
	r.earliest, r.farNext, r.youngAt, r.crowded, r.loaded = never, never, never, -1, -1
}

// visitTick returns when a slot of a far period is moved to near: at some time in the period before it, spread
// over that period so that no tick has to move many entries.
func (r *ring) visitTick(period int64, slot uint32) int64 {
	return (period-1)<<(r.bits+periodBits) + int64(slot)<<periodBits
}

// remainingRounds returns how often the far ring passes an entry of the given period before its own period
// comes.
func remainingRounds(period, current int64) int64 { return (period - current) >> roundBits }

// add allocates an entry. It returns no node if the slab must grow first. The event is the instant from which
// take must be called for this entry.
func (r *ring) add(now, deadline int64) (i uint32, n *node, event int64) {
	if i, n = r.alloc(); n == nil {
		return 0, nil, 0
	}
	event = deadline
	if r.youngs == maxYoung {
		event = min(event, r.settle(now))
	}
	n.deadline, n.loc, n.prev = deadline, locYoung, r.youngs
	r.young[r.youngs] = i
	r.youngs++
	r.youngAt = min(r.youngAt, deadline)
	return i, n, event
}

// settle moves the young entries to their rows, and returns the first of their events.
func (r *ring) settle(now int64) (event int64) {
	event = never
	r.forward(now)
	for _, i := range r.young[:r.youngs] {
		if i != 0 {
			event = min(event, r.place(i, r.node(i)))
		}
	}
	r.youngs, r.youngAt = 0, never
	return event
}

// leaveYoung removes an entry from the young.
func (r *ring) leaveYoung(n *node) {
	r.young[n.prev] = 0
	for r.youngs > 0 && r.young[r.youngs-1] == 0 {
		r.youngs--
	}
	if r.youngs == 0 {
		r.youngAt = never
	}
}

// reschedule moves an entry to another deadline. A later deadline is only stored: the entry stays where it is
// and moves on when its old slot is visited.
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

// move links an entry again.
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

// forward advances cur to the present while nothing is due: the worker sleeps through empty ticks, and near
// counts from cur.
func (r *ring) forward(now int64) {
	if t := r.tickOf(min(now, r.youngAt)); t > r.cur && t < r.earliest {
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
		return max(n.deadline, r.firstOf(t)) // overdue entries are taken with the current tick
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
	if n.loc >= locHeld {
		if n.loc == locYoung {
			r.leaveYoung(n)
		}
		n.loc = 0 // only entries that are held have such a loc
		return
	}
	switch i {
	case r.visited:
		r.visited = n.next
	case r.picked:
		r.picked = n.next
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
	if !ok { // this revolution is over; the rest belongs to a later one
		rw.period, rw.later, rw.pos = rw.later, never, 0
		b, _ = rw.nextOccupied(0)
	}
	return r.visitTick(rw.period, b<<rw.shift)
}

// take advances time to now and appends to due, within its capacity, the entries whose deadline has come, in
// the order of ticks. They are unlinked but still allocated: the caller releases or holds them. more is true if
// there may be more: due is full, or the call has looked at as many entries as it may.
func (r *ring) take(now int64, due []uint32) (_ []uint32, more bool) {
	if r.youngs > 0 {
		r.settle(now)
	}
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

// load visits the nodes of tick t and of the ticks behind it, once before they are taken. Whoever walks one long list
// waits for one cache miss after the other, which is much of what firing a million timers costs. Here the processor has
// several in flight: the lists of several ticks, each from both ends.
func (r *ring) load(t int64) {
	if t <= r.loaded {
		return
	}
	r.loaded = t + loadTicks - 1
	var lists [loadTicks]bucket
	n := 0
	for k := range int64(loadTicks) {
		rw, loc := r.nearRow(t + k)
		if rw == nil || rw.shift > 0 { // few entries
			continue
		}
		if b := rw.bucket(loc & locSlotMask); b.head != b.tail {
			lists[n] = *b
			n++
		}
	}
	for budget := takeBudget; n > 0 && budget > 0; budget-- {
		for k := n - 1; k >= 0; k-- {
			b := &lists[k]
			b.head, b.tail = r.node(b.head).next, r.node(b.tail).prev
			if b.head == b.tail || r.node(b.head).prev == b.tail { // they have met, or passed each other
				n--
				*b = lists[n]
			}
		}
	}
}

// drain takes the entries of a tick that is over. All entries leave, so it walks the list and cuts off the
// nodes it has seen together, instead of unlinking one after another.
func (r *ring) drain(t int64, due []uint32, budget int) ([]uint32, int) {
	rw, loc := r.nearRow(t)
	r.load(t)
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

// pick takes the due entries of the tick that is still running. It scans the slot once, over as many calls as
// that takes.
func (r *ring) pick(t, now int64, due []uint32, budget int) (_ []uint32, more bool) {
	r.load(t)
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

// unlinkAll unlinks every entry, held entries last, and passes it to visit, which may release it.
func (r *ring) unlinkAll(visit func(i uint32, n *node)) {
	r.settle(0)
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

// next returns the instant from which take must be called, or never if the ring is empty.
func (r *ring) next() int64 { return min(r.youngAt, r.nextPlaced()) }

// nextPlaced is next without the young.
func (r *ring) nextPlaced() int64 {
	near := r.nextNear()
	if r.farNext < near {
		return r.firstOf(r.farNext)
	}
	if near == never {
		return never
	}
	last := r.lastOf(near)
	rw, loc := r.nearRow(near)
	if near == r.crowded {
		return r.nextCrowded(near, rw)
	}
	at, i := last, rw.bucket(loc&locSlotMask).head
	for range sparse {
		if i == 0 || r.node(i).loc != loc {
			return max(at, r.firstOf(near))
		}
		at = min(at, r.node(i).deadline)
		i = r.node(i).next
	}
	if i != 0 && r.node(i).loc == loc {
		r.crowded = near
		return r.nextCrowded(near, rw)
	}
	return max(at, r.firstOf(near))
}

// nextCrowded returns when to look at a tick that has too many entries to wake for each.
func (r *ring) nextCrowded(t int64, rw *row) int64 {
	pause := max(crowdedPause, crowdedPerEntry*int64(rw.entries))
	return min(r.lastOf(t), max(r.firstOf(t), r.pickedAt)+pause)
}
