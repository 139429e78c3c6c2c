// Package signals supports hooks and statistics: it calls hooks safely, reports the end of each announced hold
// exactly once, and iterates over large maps without holding their lock for long.
package signals

import (
	"iter"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// Guard calls a hook or a callback of a user. If f panics, Guard recovers and returns the value and the stack: the
// goroutine may work for other callers, and a caller must learn what it holds although its hook panics.
func Guard(f func()) (panicked any, stack string) {
	defer func() {
		if panicked = recover(); panicked != nil {
			stack = string(debug.Stack())
		}
	}()
	f()
	return nil, ""
}

// Hold is the reported state of a hold: pending, announced or over. The zero value is pending. It is safe for
// concurrent use.
type Hold struct{ phase atomic.Uint32 }

const (
	pending   uint32 = iota // not yet returned to its caller, and may never be
	announced               // returned to its caller
	over                    // ended
)

// Announced marks the hold as announced. It returns false if the hold has ended; then the caller reports the end.
func (h *Hold) Announced() (lasts bool) { return h.phase.CompareAndSwap(pending, announced) }

// End marks the hold as ended. It returns true if the caller must report the end: once, and only for an announced
// hold. The end of a hold that is announced later is reported after the announcement.
func (h *Hold) End() (report bool) { return h.phase.Swap(over) == announced }

// piece is the number of entries that InPieces visits under one lock.
const piece = 256

// InPieces yields the result of view for each entry of m, which mu guards. view runs under mu; the loop body does
// not. mu is held for up to 256 entries at a time. An entry that stays in m is visited once; an entry that is added
// or removed meanwhile may be missed.
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
