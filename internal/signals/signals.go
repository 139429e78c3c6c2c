// Package signals has what the packages need to report on holds: that each one which was announced is
// reported to have ended exactly once, and snapshots of many without a lock that is held for long.
package signals

import (
	"iter"
	"sync"
	"sync/atomic"
)

// Hold is what was reported about one hold. The zero value is a hold that its caller does not have yet. It is
// safe for concurrent use.
type Hold struct{ phase atomic.Uint32 }

const (
	pending   uint32 = iota // its caller does not have it yet, and may never get it
	announced               // its caller has it
	over                    // it has ended
)

// Announced notes that the hold was reported to begin, and reports whether it lasts. If not, the caller
// reports its end.
func (h *Hold) Announced() (lasts bool) { return h.phase.CompareAndSwap(pending, announced) }

// End notes that the hold has ended, and reports whether the caller is to report that. It is not for a hold
// whose end was reported, nor for one that was not announced, whose end follows the announcement if there is
// one.
func (h *Hold) End() (report bool) { return h.phase.Swap(over) == announced }

// piece is how many entries are looked at under one lock.
const piece = 256

// InPieces yields what view returns for each entry of a map that mu guards. view runs under mu, which is held
// for some entries at a time and not while a value is used. So an entry that stays in the map is seen once;
// one that comes or goes meanwhile may be seen.
func InPieces[K comparable, V, T any](mu *sync.Mutex, m map[K]V, view func(K, V) T) iter.Seq[T] {
	return func(yield func(T) bool) {
		var room [piece]T
		seen := room[:0]
		flush := func() bool {
			for _, v := range seen {
				if !yield(v) {
					return false
				}
			}
			seen = room[:0]
			return true
		}
		mu.Lock()
		for k, v := range m {
			if seen = append(seen, view(k, v)); len(seen) < piece {
				continue
			}
			mu.Unlock()
			if !flush() {
				return
			}
			mu.Lock()
		}
		mu.Unlock()
		flush()
	}
}
