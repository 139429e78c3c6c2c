// Package highest keeps the maximum of concurrent reports.
package highest

import "sync/atomic"

// Raise sets v to n if n is greater. It is safe for concurrent use, and v never decreases.
func Raise(v *atomic.Int64, n int64) {
	for old := v.Load(); n > old && !v.CompareAndSwap(old, n); old = v.Load() {
	}
}
