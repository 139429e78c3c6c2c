package check

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// Span is a time during which something held that explains a wait, such as a server that hangs.
type Span struct{ From, To int64 }

// Waits are the times for which an object was surely free, or had room for each of its waiters, while at least one
// client waited for it.
type Waits []time.Duration

// Free returns those times. The spans, and what a dead holder may keep, do not count.
func Free(calls []*history.Call, r Rules, grace time.Duration, spans []Span) Waits {
	return free(calls, r, grace, spans, true)
}

// Progress returns the times of Free, but as if no call that failed had held the object. While calls fail all the time,
// as those of waiters that give up do, Free finds that the object may be held all the time; each of these calls
// can delay others for a while, and no more.
func Progress(calls []*history.Call, r Rules, grace time.Duration, spans []Span) Waits {
	return free(calls, r, grace, spans, false)
}

func free(calls []*history.Call, r Rules, grace time.Duration, spans []Span, doubts bool) (waits Waits) {
	const (
		hold = iota
		wait
		span
	)
	var edges []edge
	what := make(map[*history.Call]int)
	settle := int64(r.Lease + grace)
	add := func(kind int, c *history.Call, from, to int64) {
		part := &history.Call{Event: c.Event}
		what[part] = kind
		edges = append(edges, edge{from, true, part}, edge{to, false, part})
	}
	for _, c := range calls {
		if c.Held() {
			_, until := ending(c, settle)
			add(hold, c, c.Return, until)
		} else if from, to, ok := doubt(c, r, grace); ok && doubts {
			add(hold, c, from, to) // it may have been granted at the server
		}
		if !c.Try {
			add(wait, c, c.At, min(c.Return, c.Killed))
		}
	}
	for _, s := range spans {
		add(span, &history.Call{}, s.From, s.To)
	}

	var held int64
	since := int64(-1)
	waiting := make(map[*history.Call]bool)
	hindered := 0
	for _, e := range sorted(edges) {
		delta := int64(-1)
		if e.begin {
			delta = 1
		}
		switch what[e.call] {
		case hold:
			held += delta * r.weight(e.call)
		case span:
			hindered += int(delta)
		case wait:
			if e.begin {
				waiting[e.call] = true
			} else {
				delete(waiting, e.call)
			}
		}
		most := int64(0)
		for c := range waiting {
			most = max(most, r.weight(c))
		}
		idle := hindered == 0 && len(waiting) > 0 && held+most <= r.room()
		switch {
		case idle && since < 0:
			since = e.at
		case !idle && since >= 0:
			waits = append(waits, time.Duration(e.at-since))
			since = -1
		}
	}
	slices.Sort(waits)
	return waits
}

// Quantile returns the time below which the share q of the waits is, or 0 without waits.
func (w Waits) Quantile(q float64) time.Duration {
	if len(w) == 0 {
		return 0
	}
	return w[max(0, int(math.Ceil(q*float64(len(w))))-1)]
}

// NoneStrands finds waits that are longer than the bound.
func NoneStrands(waits Waits, bound time.Duration) []Fault {
	if longest := waits.Quantile(1); longest > bound {
		detail := fmt.Sprintf("free for %v with a waiter, more than %v", longest, bound)
		return []Fault{{"no waiter is stranded", "", detail}}
	}
	return nil
}

// Sort puts the waits in order, as Quantile needs them.
func (w Waits) Sort() { slices.Sort(w) }
