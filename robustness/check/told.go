package check

import (
	"fmt"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// Stops returns when each process was stopped, from just before to just after.
func Stops(events []history.Event) map[int][]Span {
	stops := make(map[int][]Span)
	for _, e := range events {
		p := history.ProcessOf(e.Client)
		switch e.Step {
		case history.Stopped:
			stops[p] = append(stops[p], Span{e.At, history.Never})
		case history.Resumed:
			stops[p][len(stops[p])-1].To = e.At
		}
	}
	return stops
}

// InTime finds holds that were lost whose client was not told before another client's conflicting grant returned,
// though its process was not stopped then. What the client did not record within the slack, as the machine was busy, is
// a fault; late is the longest that any client was told after such a grant. A client that has called the release, or
// was killed, need not be told.
//
// Losses of permits are not checked: a grant conflicts with no particular one of the other holds.
func InTime(
	calls []*history.Call, r Rules, stops map[int][]Span, slack time.Duration,
) (late time.Duration, faults []Fault) {
	if r.Capacity > 1 {
		return 0, nil
	}
	for _, c := range calls {
		next := firstConflict(calls, c)
		if next == nil {
			continue
		}
		until := min(c.Told, c.Release, c.Killed)
		if until == history.Never || until <= next.Return {
			continue // the history ended before, or in time
		}
		if within(stops[history.ProcessOf(c.Client)], next.Return-int64(r.Lease), until) {
			continue
		}
		d := time.Duration(until - next.Return)
		late = max(late, d)
		if d > slack {
			what := "told"
			if c.Told != until {
				what = "not told until its end"
			}
			faults = append(faults, Fault{
				"told in time", c.Object,
				fmt.Sprintf("call %d was %s, %v after call %d had been granted", c.ID, what, d, next.ID),
			})
		}
	}
	return late, faults
}

// firstConflict returns the first call, granted after c was, that excludes the hold of c, or nil.
func firstConflict(calls []*history.Call, c *history.Call) (first *history.Call) {
	if !c.Held() {
		return nil
	}
	for _, o := range calls {
		switch {
		case o == c, !o.Held(), o.Return <= c.Return, o.Shared && c.Shared, c.Owner != 0 && o.Owner == c.Owner:
		case o.Relied == history.Never: // it was lost before it was relied on
		case first == nil || o.Return < first.Return:
			first = o
		}
	}
	return first
}

// Kept finds holds that were lost without a cause: before the loss, and not longer ago than a lease, none of the
// causes lasted. It is for runs whose faults are too short to lose a hold, or in which all longer ones are known.
// Among what it finds are a renewal that ends with its first error, and a release by a stranger.
func Kept(calls []*history.Call, r Rules, causes []Span) (faults []Fault) {
	for _, c := range calls {
		lost := c.Told
		if c.End == history.Lost {
			lost = min(lost, c.Released)
		}
		if !c.Held() || lost == history.Never || within(causes, lost-int64(r.Lease), lost) {
			continue
		}
		faults = append(faults, Fault{"kept without a fault", c.Object, fmt.Sprintf("call %d lost its hold", c.ID)})
	}
	return faults
}

// All returns the spans of all processes.
func All(stops map[int][]Span) (spans []Span) {
	for _, s := range stops {
		spans = append(spans, s...)
	}
	slices.SortFunc(spans, func(a, b Span) int { return int(a.From - b.From) })
	return spans
}
