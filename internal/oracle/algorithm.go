package oracle

// Algorithm is the definition of a limit, as plain as it can be. Instants are in nanoseconds. One key may be used under
// several limits: each request is decided by its own, and counts for all.
type Algorithm interface {
	// Free returns the first instant from at on at which n permits may be granted.
	Free(at, n int64, l Limit) int64
	// Grant takes n permits, which may be used from an instant on.
	Grant(at, n int64, l Limit)
	// Reset forgets what was taken.
	Reset()
}

// Settling is an Algorithm in which what was granted and not used is given back, and what was used beyond it is booked
// as a debt.
type Settling interface {
	Algorithm
	// GiveBack takes back n of the permits that were granted for an instant: they count as if never taken.
	GiveBack(at, granted, n int64, l Limit)
	// Book takes n permits although they may not be free.
	Book(at, n int64, l Limit)
}

// Never is later than any instant at which permits are free.
const Never = int64(1) << 62

// cost is the time in which n permits come back.
func (l Limit) cost(n int64) int64 { return int64(float64(n) * float64(l.Per) / float64(l.Rate)) }

// use is permits from an instant on. For a bucket they are the nanoseconds in which they come back.
type use struct{ at, n int64 }

// giveBack takes n permits out of those from an instant on, the last ones first.
func giveBack(uses []use, at, n int64) {
	for i := len(uses) - 1; i >= 0; i-- {
		if uses[i].at == at {
			part := min(n, uses[i].n)
			uses[i].n -= part
			n -= part
		}
	}
}
