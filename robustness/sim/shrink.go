package sim

import (
	"slices"
	"time"
)

// Shrink returns the shortest schedule that it finds in which the same promise is broken, and a result of that.
// It drops faults, operations and objects while the promise stays broken in one of a few runs.
func Shrink(s *Schedule, promise string, limit time.Duration) (*Schedule, *Result) {
	sh := &shrinker{promise: promise, end: time.Now().Add(limit)}
	best := *s
	last := sh.fails(&best)
	if last == nil {
		return s, nil
	}
	for {
		before := len(best.Faults) + len(best.Ops)
		best.Faults = drop(best.Faults, func(faults []Fault) bool {
			try := best
			try.Faults = faults
			return sh.keep(&try, &last)
		})
		best.Ops = drop(best.Ops, func(ops []Op) bool {
			try := best
			try.Ops = ops
			return sh.keep(&try, &last)
		})
		if len(best.Faults)+len(best.Ops) == before || sh.over() {
			return &best, last
		}
	}
}

type shrinker struct {
	promise string
	end     time.Time
}

func (sh *shrinker) over() bool { return time.Now().After(sh.end) }

func (sh *shrinker) keep(s *Schedule, last **Result) bool {
	if sh.over() {
		return false
	}
	res := sh.fails(s)
	if res != nil {
		*last = res
	}
	return res != nil
}

// tries is how often a schedule runs until it counts as one that does not fail.
const tries = 4

// fails returns a result in which the promise is broken, or nil.
func (sh *shrinker) fails(s *Schedule) (failed *Result) {
	_ = Orders{Schedule: s, Count: tries}.Each(func(res *Result) bool { // an error is no failure
		if res.breaks(sh.promise) {
			failed = res
		}
		return failed == nil
	})
	return failed
}

// drop removes elements while what is left keeps the property: first large parts, then single ones.
func drop[T any](all []T, keeps func([]T) bool) []T {
	for size := (len(all) + 1) / 2; size > 0 && len(all) > 0; size /= 2 {
		for from := 0; from < len(all); {
			rest := slices.Concat(all[:from], all[min(from+size, len(all)):])
			if keeps(rest) {
				all = rest
			} else {
				from += size
			}
		}
	}
	return all
}
