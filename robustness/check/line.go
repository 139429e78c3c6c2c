package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// apart is the least time between two calls whose order in a line is known: their places are exact to a millisecond.
const apart = 3 * time.Millisecond

// Overtaken finds the waiter of one object that most calls overtook, if they are more than may: calls of other clients
// that were called later and granted before, counted from when it had waited for its patience. That is the time that it
// needs to enter the line, and after which the object is kept for the first in the line. As a client stands in the line
// once, a call behind others of its client waits for them first. A waiter whose process was stopped is not judged.
// Readers overtake nobody: they are let in with those that came before. A lock may be handed over within its client.
func Overtaken(calls []*history.Call, r Rules, stops map[int][]Span, patience time.Duration, may int) []Fault {
	handed := handOvers(calls, r)
	var worst, by *history.Call
	most := may
	for _, c := range calls {
		until := min(c.Return, c.Killed)
		if c.Try || within(stops[history.ProcessOf(c.Client)], c.At, until) {
			continue
		}
		from, to := after(first(calls, r, c), int64(patience)), until-int64(patience)
		n, last := 0, (*history.Call)(nil)
		for _, o := range calls {
			meanwhile := o.Held() && from < o.Return && o.Return < to
			if meanwhile && !o.Shared && !handed[o] && o.Client != c.Client && came(calls, o) > c.At+int64(apart) {
				n, last = n+1, o
			}
		}
		if n > most {
			worst, by, most = c, last, n
		}
	}
	if worst == nil {
		return nil
	}
	detail := fmt.Sprintf("call %d was overtaken by %d calls, more than %d, among them call %d",
		worst.ID, most, may, by.ID)
	return []Fault{{"no waiter is overtaken", worst.Object, detail}}
}

// handOvers returns the grants of a lock that come after one to the same client.
func handOvers(calls []*history.Call, r Rules) map[*history.Call]bool {
	handed := make(map[*history.Call]bool)
	if r.Capacity > 1 {
		return handed
	}
	granted := slices.DeleteFunc(slices.Clone(calls), func(c *history.Call) bool { return !c.Held() })
	slices.SortFunc(granted, func(a, b *history.Call) int { return cmp.Compare(a.Return, b.Return) })
	for i, c := range granted {
		handed[c] = i > 0 && granted[i-1].Client == c.Client
	}
	return handed
}

// first returns when a call became the first of its client that waits. While a client has a lock, none of its calls is
// in the line.
func first(calls []*history.Call, r Rules, c *history.Call) int64 {
	at := c.At
	for _, o := range calls {
		if o.Client != c.Client || o.Shared != c.Shared || o.Try || o.At >= c.At {
			continue
		}
		until := o.Return
		if o.Held() && r.Capacity == 1 {
			until = o.Released
		}
		at = max(at, min(until, o.Killed))
	}
	return at
}

// came returns when a client entered the line for a call: one that gives up leaves its place to the next of its client.
func came(calls []*history.Call, c *history.Call) int64 {
	at := c.At
	for _, o := range calls {
		if o.Client == c.Client && o.Shared == c.Shared && !o.Try && !o.Held() && o.At < at && o.Return >= c.At {
			at = o.At
		}
	}
	return at
}

// Running returns the calls, as if those that waited in a process that was stopped meanwhile had not waited. So an
// object may be free while nobody else wants it.
func Running(calls []*history.Call, stops map[int][]Span) []*history.Call {
	running := slices.Clone(calls)
	for i, c := range calls {
		if !c.Try && within(stops[history.ProcessOf(c.Client)], c.At, min(c.Return, c.Killed)) {
			stopped := *c
			stopped.Try = true
			running[i] = &stopped
		}
	}
	return running
}
