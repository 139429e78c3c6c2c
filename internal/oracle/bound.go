package oracle

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Limit is a limit of any algorithm, with the fields of a ratelimit.Limit.
type Limit struct {
	Rate  int64
	Per   time.Duration
	Burst int64
}

// Bound returns how many permits may be granted within a time.
type Bound func(time.Duration) float64

// BucketBound is the bound of GCRA, which a sliding window with a burst of Rate keeps too.
func (l Limit) BucketBound() Bound {
	return func(d time.Duration) float64 { return float64(l.Burst) + float64(l.Rate)*float64(d)/float64(l.Per) }
}

// LogBound is the bound of the sliding log: the rate within any Per, twice within more than one, and so on.
func (l Limit) LogBound() Bound {
	return func(d time.Duration) float64 { return float64(l.Rate) * float64(d/l.Per+1) }
}

// WindowsBound is the bound of fixed windows: the rate in each that the time touches.
func (l Limit) WindowsBound() Bound {
	return func(d time.Duration) float64 { return float64(l.Rate) * float64(d/l.Per+2) }
}

// Grant is n permits that were granted at some instant from Call to Return.
type Grant struct{ Call, Return, N int64 }

// Between returns a grant of n permits between two instants.
func Between(call, back time.Time, n int64) Grant { return Grant{call.UnixNano(), back.UnixNano(), n} }

// Excess returns by how many permits the worst interval is above its bound, and at most 0 if the limit was kept. An
// interval begins with the call of a grant and ends with the return of one. What surely happened in it counts: the
// grants that were called and returned within.
func Excess(grants []Grant, may Bound) float64 { return ExcessWithin(math.MaxInt64, grants, may) }

// ExcessWithin is Excess of intervals up to some length only, for long histories.
func ExcessWithin(most time.Duration, grants []Grant, may Bound) float64 {
	grants = slices.Clone(grants)
	slices.SortFunc(grants, func(a, b Grant) int { return cmp.Compare(a.Return, b.Return) })
	worst := math.Inf(-1)
	for i, first := range grants {
		for i > 0 && grants[i-1].Return > first.Call { // returned before it, but began after
			i--
		}
		held := int64(0)
		for _, g := range grants[i:] {
			if time.Duration(g.Return-first.Call) > most {
				break
			}
			if g.Call >= first.Call {
				held += g.N
				worst = max(worst, float64(held)-may(time.Duration(g.Return-first.Call)))
			}
		}
	}
	return worst
}
