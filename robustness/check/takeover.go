package check

import (
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// Takeovers returns, for each exclusive hold whose process was killed before it released, the time from the death to
// the next grant of the object, minus the lease. As a lease is renewed after a part of it, most of these times are
// negative. Those during which another fault lasted do not count, and neither do those after which nothing was
// asked for.
func Takeovers(calls []*history.Call, r Rules, spans []Span) (waits Waits) {
	if r.Capacity > 1 {
		return nil
	}
	for _, c := range calls {
		if !c.Held() || c.Shared || c.Killed == history.Never || c.Release != history.Never {
			continue
		}
		next := nextGrant(calls, c, c.Killed)
		if next == nil {
			continue
		}
		another := func(s Span) bool { return s.From > c.Killed && s.From < next.Return }
		if slices.ContainsFunc(spans, another) {
			continue
		}
		waits = append(waits, time.Duration(next.Return-c.Killed)-r.Lease)
	}
	return waits
}

// Told counts the exclusive holds whose clients were told of the loss before the next grant of the object, and
// those that were told later. A client that could not run then, as a fault lasted, does not count as late.
func Told(calls []*history.Call, r Rules, spans []Span) (first, late int) {
	if r.Capacity > 1 {
		return 0, 0
	}
	for _, c := range calls {
		if !c.Held() || c.Shared || c.Told == history.Never {
			continue
		}
		next := nextGrant(calls, c, c.Return)
		switch {
		case next == nil || c.Told <= next.Return:
			first++
		case !within(spans, next.Return, c.Told):
			late++
		}
	}
	return first, late
}

// nextGrant returns the first call that was granted after an instant and does not share an owner with c.
func nextGrant(calls []*history.Call, c *history.Call, after int64) (next *history.Call) {
	for _, other := range calls {
		sameOwner := c.Owner != 0 && other.Owner == c.Owner
		if other == c || !other.Held() || sameOwner || other.Return <= after {
			continue
		}
		if next == nil || other.Return < next.Return {
			next = other
		}
	}
	return next
}
