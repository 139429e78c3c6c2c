package oracle

import "slices"

// Bucket is the generic cell rate algorithm: taken permits come back one by one. Permits may be taken for an instant
// before that of others: then these must fit afterwards too.
type Bucket struct {
	Early int64 // nanoseconds of permits that may be taken beyond the burst: what an implementation rounds

	back int64 // when all permits are back
	uses []use // by instant, since all permits were back
}

// Free implements Algorithm.
func (b *Bucket) Free(at, n int64, l Limit) int64 {
	if n > l.Burst {
		return Never
	}
	for range 2 + 2*len(b.uses) {
		excess := b.excess(use{at, l.cost(n)}, l.cost(l.Burst))
		if excess <= b.Early {
			break
		}
		at += excess // nothing less helps
	}
	return at
}

// Behind is Free for permits that must come after all that were taken.
func (b *Bucket) Behind(at, n int64, l Limit) int64 {
	return max(at, b.back+l.cost(n)-l.cost(l.Burst))
}

// excess returns by how much more than full is taken when the use is added, or afterwards.
func (b *Bucket) excess(added use, full int64) (excess int64) {
	level, since := int64(0), added.at
	take := func(u use) {
		level = max(0, level-(u.at-since)) + u.n
		since = u.at
	}
	rest := b.uses
	if len(rest) > 0 {
		since = rest[0].at
	}
	for len(rest) > 0 && rest[0].at <= added.at {
		take(rest[0])
		rest = rest[1:]
	}
	if len(rest) == len(b.uses) {
		since = added.at
	}
	take(added)
	excess = level - full
	if added.n == 0 {
		return excess
	}
	for _, u := range rest {
		take(u)
		excess = max(excess, level-full)
	}
	return excess
}

// Grant implements Algorithm.
func (b *Bucket) Grant(at, n int64, l Limit) {
	if at >= b.back {
		b.uses = b.uses[:0]
	}
	i, _ := slices.BinarySearchFunc(b.uses, at+1, func(u use, at int64) int { return int(u.at - at) })
	b.uses = slices.Insert(b.uses, i, use{at, l.cost(n)})
	b.sum()
}

// sum sets the instant when all permits are back.
func (b *Bucket) sum() {
	const rounding = 10 // a cost is cut to whole nanoseconds
	b.back = 0
	for _, u := range b.uses {
		if u.n > rounding {
			b.back = max(b.back, u.at) + u.n
		}
	}
}

// GiveBack implements Settling. What is left comes back one by one, from the instants on from which it may be used.
func (b *Bucket) GiveBack(_, granted, n int64, l Limit) {
	giveBack(b.uses, granted, l.cost(n))
	b.sum()
}

// Book implements Settling.
func (b *Bucket) Book(at, n int64, l Limit) { b.Grant(at, n, l) }

// Reset implements Algorithm.
func (b *Bucket) Reset() { *b = Bucket{Early: b.Early} }
