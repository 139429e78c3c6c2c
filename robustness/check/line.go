package check

import (
	"fmt"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// Overtaken finds the waiter of one object that most calls overtook, if they are more than may: calls of other clients
// that were called later and granted before, counted from when it had waited for its patience. That is the time that it
// needs to enter the line, and after which the object is kept for the first in the line. As a client stands in the line
// once, a call behind others of its client waits for them first. A waiter whose process was stopped is not judged, and
// readers overtake nobody: they are let in with those that came before.
func Overtaken(calls []*history.Call, stops map[int][]Span, patience time.Duration, may int) []Fault {
	var worst *history.Call
	most := may
	for _, c := range calls {
		until := min(c.Return, c.Killed)
		if c.Try || within(stops[history.ProcessOf(c.Client)], c.At, until) {
			continue
		}
		from, to := after(first(calls, c), int64(patience)), until-int64(patience)
		n := 0
		for _, o := range calls {
			if o.Held() && !o.Shared && o.Client != c.Client && o.At > c.At && o.Return > from && o.Return < to {
				n++
			}
		}
		if n > most {
			worst, most = c, n
		}
	}
	if worst == nil {
		return nil
	}
	detail := fmt.Sprintf("call %d was overtaken by %d calls, more than %d", worst.ID, most, may)
	return []Fault{{"no waiter is overtaken", worst.Object, detail}}
}

// first returns when a call became the first of its client that waits.
func first(calls []*history.Call, c *history.Call) int64 {
	at := c.At
	for _, o := range calls {
		if o.Client == c.Client && o.Shared == c.Shared && !o.Try && o.At < c.At {
			at = max(at, min(o.Return, o.Killed))
		}
	}
	return at
}

// Running returns the calls in which those of processes that were stopped while they waited count as calls that do
// not wait: an object may be free as long as only these want it.
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
