// Package signals supports hooks and statistics: it calls hooks safely, tells errors from their repetitions, and
// iterates over large maps without holding their lock for long.
package signals

import (
	"iter"
	"runtime/debug"
	"sync"
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
