package check

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// Bound returns how many permits may be granted within a time.
type Bound func(time.Duration) float64

// Excess returns by how many permits the worst window is above its bound, and at most 0 if the limit was kept. A
// window begins with the call of a grant and ends with the return of one. What surely happened in it counts: the
// grants that were called and returned within.
func Excess(granted []*history.Call, bound Bound) (worst float64) {
	granted = slices.Clone(granted)
	slices.SortFunc(granted, func(a, b *history.Call) int { return cmp.Compare(a.Return, b.Return) })
	worst = math.Inf(-1)
	for i, first := range granted {
		for i > 0 && granted[i-1].Return > first.At { // returned before it, but began after
			i--
		}
		held := int64(0)
		for _, c := range granted[i:] {
			if c.At >= first.At {
				held += c.N
				worst = max(worst, float64(held)-bound(time.Duration(c.Return-first.At)))
			}
		}
	}
	return worst
}

// Limit finds a limit that was not kept. Each loss of the data may have added one burst.
func Limit(granted []*history.Call, bound Bound, losses int, burst int64) []Fault {
	if worst := Excess(granted, bound); worst > float64(int64(losses)*burst) {
		return []Fault{{"a limit is kept", granted[0].Object, fmt.Sprintf(
			"%.1f permits too many in a window, after %d losses of data with a burst of %d", worst, losses, burst)}}
	}
	return nil
}
