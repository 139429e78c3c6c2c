package check

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// Linear is exact, and needs to know what ends a hold. Overlap looks only at what clients relied on: so it says for how
// long two of them did.
//
// The model of an object is the set of its holds, as Knossos' and Jepsen's models of locks are. A hold that was not
// released by its client ends by an operation of the environment, which takes place at some instant between the
// last sign of the hold and the end of its lease.
//
// A call that failed, or a waiter that gave up, may have been granted at the server for a while. That can only explain
// a refusal, so refusals at such times are not checked, and the call itself need not be in the model. Nor is a waiter
// that gave up: a lost message may delay it although there is room. How long, Free measures.

// operation is the input of the model.
type operation struct {
	what   operationKind
	id     uint64
	owner  uint64
	weight int64
	token  int64
}

type operationKind uint8

const (
	acquire operationKind = iota // took its weight
	refuse                       // found no room for its weight
	end                          // the hold is gone
)

func (o operation) String() string {
	return fmt.Sprintf("%s %d", []string{"acquire", "refused", "end"}[o.what], o.id)
}

// state is a state of the model. It is never changed.
type state struct {
	holds map[uint64]operation
	token int64 // the highest so far
}

func (s state) with(o operation) state {
	n := state{maps.Clone(s.holds), max(s.token, o.token)}
	n.holds[o.id] = o
	return n
}

func (s state) without(id uint64) state {
	n := state{maps.Clone(s.holds), s.token}
	delete(n.holds, id)
	return n
}

func (s state) taken() int64 {
	return taken(func(yield func(uint64, int64) bool) {
		for _, o := range s.holds {
			if !yield(o.owner, o.weight) {
				return
			}
		}
	})
}

// owned reports whether the owner has a hold.
func (s state) owned(owner uint64) bool {
	if owner == 0 {
		return false
	}
	for _, h := range s.holds {
		if h.owner == owner {
			return true
		}
	}
	return false
}

func model(r Rules) porcupine.Model {
	room := r.room()
	return porcupine.Model{
		Init: func() any { return state{holds: map[uint64]operation{}} },
		Step: func(from, input, _ any) (bool, any) {
			s, o := from.(state), input.(operation)
			owned := s.owned(o.owner)
			if o.what == end {
				if _, present := s.holds[o.id]; !present {
					return false, s
				}
				return true, s.without(o.id)
			}
			after := s.with(o)
			fits := after.taken() <= room
			switch o.what {
			case acquire:
				rises := o.token == 0 || o.token > s.token || owned && o.token == s.token
				if fits && rises {
					return true, after
				}
			case refuse:
				return !fits, s
			}
			return false, s
		},
		Equal:             func(a, b any) bool { return equal(a.(state), b.(state)) },
		DescribeOperation: func(input, _ any) string { return input.(operation).String() },
		DescribeState: func(of any) string {
			s := of.(state)
			return fmt.Sprintf("%d taken, token %d", s.taken(), s.token)
		},
	}
}

func equal(a, b state) bool {
	return a.token == b.token && maps.Equal(a.holds, b.holds)
}

// Linear searches an order of the operations on one object in which the model allows each of them, between its
// call and its return. Grace is added to the lease for a hold that its client did not release: the time for which
// the server could not be reached. The search is given up after the limit, which is a fault too.
func Linear(calls []*history.Call, r Rules, grace, limit time.Duration) []Fault {
	ops := operations(calls, r, grace)
	if len(ops) == 0 {
		return nil
	}
	switch result := porcupine.CheckOperationsTimeout(model(r), ops, limit); result {
	case porcupine.Ok:
		return nil
	case porcupine.Illegal:
		detail := fmt.Sprintf("no order of the %d operations explains them", len(ops))
		if dir := os.Getenv("ROBUSTNESS_DIR"); dir != "" {
			detail += "; " + explain(dir, calls, r, ops, limit)
		}
		return []Fault{{"linearizable", calls[0].Object, detail}}
	default:
		detail := fmt.Sprintf("undecided after %v with %d operations", limit, len(ops))
		return []Fault{{"linearizable", calls[0].Object, detail}}
	}
}

func operations(calls []*history.Call, r Rules, grace time.Duration) (ops []porcupine.Operation) {
	settle := int64(r.Lease + grace)
	doubts := doubtful(calls, r, grace)
	for i, c := range calls {
		add := func(what operationKind, from, to int64) {
			ops = append(ops, porcupine.Operation{
				ClientId: i, Call: from, Return: to,
				Input: operation{what: what, id: c.ID, owner: c.Owner, weight: r.weight(c), token: c.Token},
			})
		}
		switch {
		case c.Held():
			add(acquire, c.At, c.Return)
			from, to := ending(c, settle)
			add(end, from, to)
		case r.checksRefusal(c, doubts):
			add(refuse, c.At, c.Return)
		}
	}
	slices.SortStableFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	return ops
}

// givingBack is the longest time between the end of a wait and the release of what the server granted it too late.
const givingBack = time.Second

// keptFor is the longest time for which a release keeps the object for a waiter that it wakes, with some slack. If the
// waiter does not hear, nobody has it meanwhile.
const keptFor = 60 * time.Millisecond

// doubtful returns the times at which calls that did not return with a result may hold the object: a call that
// failed gives back what it got as soon as the server can be reached again, one whose process was killed keeps it
// for a lease, and a waiter that gave up may have been granted a moment before. It also returns the times at which a
// release may keep the object for a waiter.
func doubtful(calls []*history.Call, r Rules, grace time.Duration) (spans []Span) {
	waits := waitsOf(calls)
	for _, c := range calls {
		if c.End == history.Released && waits.during(c.Release, c.Released) {
			spans = append(spans, Span{c.Release, after(c.Released, int64(keptFor))})
		}
		if from, to, ok := doubt(c, r, grace); ok {
			spans = append(spans, Span{from, to})
		} else if c.Outcome == history.Refused && !c.Try {
			while := int64(grace + givingBack)
			spans = append(spans, Span{max(c.At, c.Return-while), after(c.Return, while)})
		}
	}
	return spans
}

// waits are the calls that wait, in the order in which they came: when each came, and the last return so far.
type waits []Span

func waitsOf(calls []*history.Call) (all waits) {
	last := int64(0)
	for _, c := range calls {
		if !c.Try {
			last = max(last, c.Return)
			all = append(all, Span{c.At, last})
		}
	}
	return all
}

// during reports whether a call waited at some time.
func (w waits) during(from, to int64) bool {
	n, _ := slices.BinarySearchFunc(w, to+1, func(s Span, at int64) int { return cmp.Compare(s.From, at) })
	return n > 0 && w[n-1].To >= from
}

// checksRefusal reports whether the call was refused and Linear checks that: not with fair objects, not that of a
// waiter, and not while a call without a result may have held the object.
func (r Rules) checksRefusal(c *history.Call, doubts []Span) bool {
	return c.Outcome == history.Refused && c.Try && !r.Fair && !within(doubts, c.At, c.Return)
}

// Refusals returns how many calls were refused, and how many of these refusals Linear checks.
func Refusals(calls []*history.Call, r Rules, grace time.Duration) (refused, checked int) {
	doubts := doubtful(calls, r, grace)
	for _, c := range calls {
		if c.Outcome != history.Refused {
			continue
		}
		refused++
		if r.checksRefusal(c, doubts) {
			checked++
		}
	}
	return refused, checked
}

// within reports whether a part of the time lies within one of the spans.
func within(spans []Span, from, to int64) bool {
	return slices.ContainsFunc(spans, func(s Span) bool { return s.From <= to && from <= s.To })
}

// ending returns the time within which the server ends a hold.
func ending(c *history.Call, settle int64) (from, to int64) {
	if c.End == history.Released {
		return c.Release, c.Released
	}
	from = c.At // one that its client never found valid may have ended before the grant returned
	if c.Relied != history.Never {
		from = c.Relied
	}
	return from, after(c.Gone(), settle)
}

// doubt returns when a call without a result may hold the object, and whether there is such a time.
func doubt(c *history.Call, r Rules, grace time.Duration) (from, to int64, ok bool) {
	switch c.Outcome {
	case history.Failed:
		return c.At, after(c.Return, int64(grace)), true
	case history.Called:
		return c.At, after(c.Gone(), int64(r.Lease+grace)), true
	default:
		return 0, 0, false
	}
}

// after returns an instant and a while later. Nothing comes after Never.
func after(at, while int64) int64 {
	if at > history.Never-while {
		return history.Never
	}
	return at + while
}
