package wheel

import (
	"math"
	"math/bits"
)

// bucket is an intrusive list of nodes linked by index; the zero bucket is empty.
type bucket struct{ head, tail uint32 }

// push links a node at the end.
func (b *bucket) push(s *slab, i uint32, n *node) {
	n.next, n.prev = 0, b.tail
	if b.tail == 0 {
		b.head = i
	} else {
		s.node(b.tail).next = i
	}
	b.tail = i
}

// insert links a node behind those of its slot and of earlier slots, if the last node has a later slot.
func (b *bucket) insert(s *slab, i uint32, n *node) {
	before := s.node(b.tail).prev
	for before != 0 && s.node(before).loc > n.loc {
		before = s.node(before).prev
	}
	after := b.head
	if before != 0 {
		after = s.node(before).next
		s.node(before).next = i
	} else {
		b.head = i
	}
	n.prev, n.next = before, after
	s.node(after).prev = i
}

func (b *bucket) unlink(s *slab, n *node) {
	if n.prev == 0 {
		b.head = n.next
	} else {
		s.node(n.prev).next = n.next
	}
	if n.next == 0 {
		b.tail = n.prev
	} else {
		s.node(n.next).prev = n.prev
	}
}

// row is one round (near) or one period (far): a slot for each tick of the wheel, which Netty calls a bucket.
// Rows exist only while they hold entries, and their memory grows with these: a row begins with a few buckets,
// each for 2^shift neighbouring slots, and gets more as it fills. A near bucket that holds several slots is
// sorted by slot.
type row struct {
	shift    uint
	buckets  []bucket
	occupied []uint64 // bit set: that bucket is not empty
	entries  int
	grown    int // number of times that the row has grown

	// Far rows only. Every entry of the row belongs to period or to a later one.
	period int64  // the period that is moved to near next
	later  int64  // lower bound of the periods behind it
	pos    uint32 // the slots before pos have been visited in this revolution

	// A row with few entries needs no other memory. Rows of different shards share no cache line: two
	// processors write them at the same time.
	few  [fewBuckets]bucket
	word [1]uint64
	_    [88]byte // to 256 bytes on 64-bit machines
}

// fewBuckets is how many buckets a new row has.
const fewBuckets = 8

// growth has the number of buckets, at most one per slot, that a row gets when it holds a number of entries. So
// a bucket has a few entries, an entry costs at most 64 bytes of buckets unless there are more than 65536
// slots, and growing moves at most 8192 entries.
var growth = []struct{ entries, buckets int }{{32, 64}, {256, 512}, {2048, 8192}, {8192, math.MaxInt}}

func newRow(slots int) *row {
	r := &row{}
	r.size(slots, fewBuckets)
	return r
}

// size gives an empty row buckets for its slots. Both numbers are powers of two.
func (r *row) size(slots, buckets int) {
	buckets = min(buckets, slots)
	r.shift = uint(bits.TrailingZeros(uint(slots / buckets)))
	if r.buckets = r.few[:min(buckets, fewBuckets)]; buckets > fewBuckets {
		r.buckets = make([]bucket, buckets)
	}
	if r.occupied = r.word[:]; buckets > 64 {
		r.occupied = make([]uint64, (buckets+63)/64)
	}
	clear(r.occupied)
	r.entries = 0
}

func (r *row) crowded() bool { return r.shift > 0 && r.entries >= growth[r.grown].entries }

// grow spreads the entries over more buckets.
func (r *row) grow(s *slab) {
	former, buckets := r.buckets, growth[r.grown].buckets
	r.grown++
	r.size(len(former)<<r.shift, buckets)
	for _, bk := range former {
		for i := bk.head; i != 0; {
			n := s.node(i)
			next := n.next
			r.push(s, n.loc&locSlotMask, i, n) // sorted entries stay sorted
			i = next
		}
	}
}

// nextOccupied returns the first occupied bucket that holds the given slot or a later one.
func (r *row) nextOccupied(slot uint32) (b uint32, ok bool) {
	b = slot >> r.shift
	w := int(b >> 6)
	if w >= len(r.occupied) {
		return 0, false
	}
	for set := r.occupied[w] &^ (1<<(b&63) - 1); ; set = r.occupied[w] {
		if set != 0 {
			return uint32(w<<6 + bits.TrailingZeros64(set)), true
		}
		if w++; w == len(r.occupied) {
			return 0, false
		}
	}
}

func (r *row) bucket(slot uint32) *bucket { return &r.buckets[slot>>r.shift] }

// push links a node at the end of the bucket of its slot.
func (r *row) push(s *slab, slot uint32, i uint32, n *node) {
	b := slot >> r.shift
	r.occupied[b>>6] |= 1 << (b & 63)
	r.entries++
	r.buckets[b].push(s, i, n)
}

// insert is push for a near row, whose buckets are kept in the order of their slots.
func (r *row) insert(s *slab, slot uint32, i uint32, n *node) {
	if last := r.bucket(slot).tail; r.shift == 0 || last == 0 || s.node(last).loc <= n.loc {
		r.push(s, slot, i, n)
		return
	}
	r.entries++
	r.bucket(slot).insert(s, i, n)
}

func (r *row) unlink(s *slab, slot uint32, n *node) {
	b := slot >> r.shift
	bk := &r.buckets[b]
	bk.unlink(s, n)
	if bk.head == 0 {
		r.occupied[b>>6] &^= 1 << (b & 63)
	}
	r.entries--
}

// cut removes the nodes before i, whose number is given, from the bucket of a slot.
func (r *row) cut(s *slab, slot uint32, i uint32, nodes int) {
	b := slot >> r.shift
	bk := &r.buckets[b]
	r.entries -= nodes
	if bk.head = i; i != 0 {
		s.node(i).prev = 0
		return
	}
	bk.tail = 0
	r.occupied[b>>6] &^= 1 << (b & 63)
}
