// Package signals supports hooks and statistics: it tells errors from their repetitions, and iterates over large maps
// without holding their lock for long.
package signals

import (
	"iter"
	"sync"
)

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
