package oracle

import (
	"cmp"
	"slices"
)

// SlidingLog counts the grants of the last period.
type SlidingLog struct{ entries []use } // by instant

// Left returns how many permits are free at an instant, and less than 0 if a debt is above the limit.
func (g *SlidingLog) Left(at int64, l Limit) int64 {
	left := l.Rate
	for _, e := range g.entries {
		if e.at+int64(l.Per) > at {
			left -= e.n
		}
	}
	return left
}

// Free implements Algorithm.
func (g *SlidingLog) Free(at, n int64, l Limit) int64 {
	if n > l.Rate {
		return Never
	}
	used := n
	for _, e := range slices.Backward(g.entries) {
		if end := e.at + int64(l.Per); end > at {
			if used += e.n; used > l.Rate {
				// The entries are in order: this one has to leave, and all before it. One that waits overtakes none.
				return max(end, g.entries[len(g.entries)-1].at)
			}
		}
	}
	return at
}

// Grant implements Algorithm.
func (g *SlidingLog) Grant(at, n int64, _ Limit) {
	g.entries = append(g.entries, use{at, n})
	slices.SortStableFunc(g.entries, func(a, b use) int { return cmp.Compare(a.at, b.at) })
}

// GiveBack implements Settling.
func (g *SlidingLog) GiveBack(_, granted, n int64, _ Limit) { giveBack(g.entries, granted, n) }

// Book implements Settling.
func (g *SlidingLog) Book(at, n int64, l Limit) { g.Grant(at, n, l) }

// Reset implements Algorithm.
func (g *SlidingLog) Reset() { g.entries = nil }
