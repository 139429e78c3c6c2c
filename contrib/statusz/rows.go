package statusz

import (
	"iter"
	"slices"
)

// first returns the n values that come first by compare, in order, and how many others there are. It keeps 2n
// of them at most, and compares most of many with one other only.
func first[T any](values iter.Seq[T], n int, compare func(a, b T) int) (rows []T, leftOut int) {
	full := false // the first n rows are sorted: what comes after the last of them is left out
	cut := func() {
		slices.SortStableFunc(rows, compare)
		if len(rows) > n {
			rows, leftOut, full = rows[:n], leftOut+len(rows)-n, true
		}
	}
	for v := range values {
		if full && compare(v, rows[n-1]) >= 0 {
			leftOut++
			continue
		}
		if rows = append(rows, v); len(rows) == 2*n {
			cut()
		}
	}
	cut()
	return rows, leftOut
}
