package wheel

import "math/bits"

// bucket is an intrusive FIFO of nodes linked by index; the zero bucket is empty.
type bucket struct{ head, tail uint32 }

func (b *bucket) push(s *slab, i uint32, n *node) {
	n.next, n.prev = 0, b.tail
	if b.tail == 0 {
		b.head = i
	} else {
		s.node(b.tail).next = i
	}
	b.tail = i
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

// row is the buckets of one round (near) or of one period (far), with a bit set for each that is occupied.
// Rows exist only while they hold something.
type row struct {
	buckets  []bucket
	occupied []uint64
	used     int // occupied buckets

	// Far rows only. Every entry of the row belongs to period or to a later one.
	period int64  // the period that is moved to near next
	later  int64  // lower bound of the periods behind it
	pos    uint32 // the buckets before pos have been visited in this revolution
}

func newRow(buckets int) *row {
	return &row{buckets: make([]bucket, buckets), occupied: make([]uint64, (buckets+63)/64)}
}

// nextOccupied returns the first occupied bucket at or after b.
func (r *row) nextOccupied(b uint32) (uint32, bool) {
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

func (r *row) push(s *slab, b uint32, i uint32, n *node) {
	bk := &r.buckets[b]
	if bk.head == 0 {
		r.occupied[b>>6] |= 1 << (b & 63)
		r.used++
	}
	bk.push(s, i, n)
}

func (r *row) unlink(s *slab, b uint32, n *node) {
	bk := &r.buckets[b]
	bk.unlink(s, n)
	if bk.head == 0 {
		r.occupied[b>>6] &^= 1 << (b & 63)
		r.used--
	}
}

// cut drops the nodes before i from their bucket; 0 drops all.
func (r *row) cut(s *slab, b uint32, i uint32) {
	bk := &r.buckets[b]
	if bk.head = i; i != 0 {
		s.node(i).prev = 0
		return
	}
	bk.tail = 0
	r.occupied[b>>6] &^= 1 << (b & 63)
	r.used--
}
