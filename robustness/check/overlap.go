// Package check finds broken promises in the history of a run. Each check is a pure function of the history, and
// has a negative control: a history, or a wrong implementation, in which it must find a fault.
package check

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// Fault is a broken promise.
type Fault struct {
	Promise string
	Object  string
	Detail  string
}

func (f Fault) String() string { return fmt.Sprintf("%s: %s: %s", f.Object, f.Promise, f.Detail) }

// Rules say what an object of a run is.
type Rules struct {
	Capacity int64         // permits; 1 for a lock
	Lease    time.Duration // the longest that a dead holder may keep it
	Fair     bool          // a caller that does not wait may be refused although there is room, as others wait
	Counting bool          // permits without leases: those of a dead holder are lost
}

// weight returns how much of the capacity a call takes. A shared hold takes one of as many as there may be, and an
// exclusive one takes all of them.
func (r Rules) weight(c *history.Call) int64 {
	switch {
	case r.Capacity > 1:
		return c.N
	case c.Shared:
		return 1
	default:
		return exclusive
	}
}

func (r Rules) room() int64 {
	if r.Capacity > 1 {
		return r.Capacity
	}
	return exclusive
}

// exclusive is more than the number of readers of any run.
const exclusive = 1 << 20

// edge is an instant at which something begins or ends.
type edge struct {
	at    int64
	begin bool
	call  *history.Call
}

// sorted orders edges by time. What begins at the instant at which something else ends overlaps with it.
func sorted(edges []edge) []edge {
	slices.SortStableFunc(edges, func(a, b edge) int {
		if c := cmp.Compare(a.at, b.at); c != 0 || a.begin == b.begin {
			return c
		}
		if a.begin {
			return -1
		}
		return 1
	})
	return edges
}

// Overlap returns the longest time for which the clients of one object relied on more than there is, and the
// largest number of holds that clients relied on at one instant. A client relies on a hold from the return of the
// acquisition to the last instant at which it found the hold valid.
func Overlap(calls []*history.Call, r Rules) (longest time.Duration, most int64, faults []Fault) {
	var edges []edge
	for _, c := range calls {
		if c.Held() && c.Relied != history.Never { // one that was not found valid even once excludes no other
			edges = append(edges, edge{c.Return, true, c}, edge{c.Relied, false, c})
		}
	}
	var since int64
	over := false
	present := make(map[*history.Call]bool)
	for _, e := range sorted(edges) {
		if e.begin {
			present[e.call] = true
			most = max(most, int64(len(present)))
		} else {
			delete(present, e.call)
		}
		switch now := r.taken(maps.Keys(present)) > r.room(); {
		case now && !over:
			since = e.at
			faults = append(faults, Fault{"overlap", e.call.Object, fmt.Sprintf(
				"call %d was granted while %d others relied on theirs",
				e.call.ID, len(present)-1)})
		case over && !now:
			longest = max(longest, time.Duration(e.at-since))
		}
		over = r.taken(maps.Keys(present)) > r.room()
	}
	return longest, most, faults
}

func (r Rules) taken(holds iter.Seq[*history.Call]) int64 {
	return taken(func(yield func(uint64, int64) bool) {
		for c := range holds {
			if !yield(c.Owner, r.weight(c)) {
				return
			}
		}
	})
}

// taken returns how much holds take, given the owner and the weight of each. Those of one owner take as much as the
// largest of them.
func taken(holds iter.Seq2[uint64, int64]) (sum int64) {
	var owned map[uint64]int64
	for owner, w := range holds {
		if owner != 0 {
			if owned == nil {
				owned = make(map[uint64]int64)
			}
			had := owned[owner]
			owned[owner] = max(had, w)
			w = owned[owner] - had
		}
		sum += w
	}
	return sum
}

// Tokens finds holds whose token is not above that of a hold that was granted before they were called.
func Tokens(calls []*history.Call) (faults []Fault) {
	granted := slices.DeleteFunc(slices.Clone(calls), func(c *history.Call) bool { return !c.Held() || c.Token == 0 })
	byReturn := slices.Clone(granted)
	slices.SortFunc(byReturn, func(a, b *history.Call) int { return cmp.Compare(a.Return, b.Return) })
	slices.SortFunc(granted, func(a, b *history.Call) int { return cmp.Compare(a.At, b.At) })
	var highest *history.Call // of those that returned before the call at hand
	for _, c := range granted {
		for len(byReturn) > 0 && byReturn[0].Return < c.At {
			if highest == nil || byReturn[0].Token > highest.Token {
				highest = byReturn[0]
			}
			byReturn = byReturn[1:]
		}
		if highest == nil || c.Token > highest.Token ||
			c.Owner != 0 && c.Owner == highest.Owner && c.Token == highest.Token {
			continue
		}
		faults = append(faults, Fault{"tokens increase", c.Object, fmt.Sprintf(
			"call %d has token %d after call %d had %d", c.ID, c.Token, highest.ID, highest.Token)})
	}
	return faults
}

// Store checks the writes to a store that compares tokens: none is accepted after one with a higher token, and
// none is rejected while its client relies on its hold. It returns how many stale writes were tried.
func Store(calls []*history.Call) (tried, accepted int, faults []Fault) {
	type write struct {
		history.Write
		call *history.Call
	}
	var writes []write
	for _, c := range calls {
		for _, w := range c.Writes {
			writes = append(writes, write{w, c})
		}
	}
	slices.SortFunc(writes, func(a, b write) int { return cmp.Compare(a.Seq, b.Seq) })
	var highest int64
	for _, w := range writes {
		stale := w.call.Token < highest
		if stale || !w.Accepted {
			tried++
		}
		switch {
		case w.Accepted && stale:
			accepted++
			faults = append(faults, Fault{
				"no stale write", w.call.Object,
				fmt.Sprintf("call %d wrote with token %d after %d", w.call.ID, w.call.Token, highest),
			})
		case !w.Accepted && w.call.Relied != history.Never && w.call.Relied >= w.At:
			faults = append(faults, Fault{
				"no write of a holder is rejected", w.call.Object,
				fmt.Sprintf("call %d with token %d", w.call.ID, w.call.Token),
			})
		}
		if w.Accepted {
			highest = max(highest, w.call.Token)
		}
	}
	return tried, accepted, faults
}

// Stale counts the writes without tokens that came after a write of a hold that was granted later. It is for
// exclusive holds.
func Stale(calls []*history.Call) (stale int) {
	type write struct{ seq, granted int64 }
	var writes []write
	for _, c := range calls {
		for _, w := range c.Writes {
			writes = append(writes, write{w.Seq, c.Return})
		}
	}
	slices.SortFunc(writes, func(a, b write) int { return cmp.Compare(a.seq, b.seq) })
	var latest int64
	for _, w := range writes {
		if w.granted < latest {
			stale++
		}
		latest = max(latest, w.granted)
	}
	return stale
}
