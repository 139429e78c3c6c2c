package oracle

// Bucket is the generic cell rate algorithm: taken permits come back one by one.
type Bucket struct {
	back int64 // when all permits are back
	uses []use // in the order in which they were taken, since all permits were back
}

// Free implements Algorithm.
func (b *Bucket) Free(at, n int64, l Limit) int64 {
	if n > l.Burst {
		return Never
	}
	return max(at, b.back+l.cost(n)-l.cost(l.Burst))
}

// Grant implements Algorithm.
func (b *Bucket) Grant(at, n int64, l Limit) {
	if at >= b.back {
		b.uses = b.uses[:0]
	}
	b.uses = append(b.uses, use{at, l.cost(n)})
	b.back = max(b.back, at) + l.cost(n)
}

// GiveBack implements Settling. What is left comes back one by one, from the instants on from which it may be used.
func (b *Bucket) GiveBack(_, granted, n int64, l Limit) {
	const rounding = 10 // a cost is cut to whole nanoseconds
	giveBack(b.uses, granted, l.cost(n))
	b.back = 0
	for _, u := range b.uses {
		if u.n > rounding {
			b.back = max(b.back, u.at) + u.n
		}
	}
}

// Book implements Settling.
func (b *Bucket) Book(at, n int64, l Limit) { b.Grant(at, n, l) }

// Reset implements Algorithm.
func (b *Bucket) Reset() { *b = Bucket{} }
