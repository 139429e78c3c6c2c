package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/cogwheel-go/cogwheel/internal/robustness/history"
)

// The model of an object is the set of its holds, as Knossos' and Jepsen's models of locks are. A hold that was not
// released by its client ends by an operation of the environment, which takes place at some instant between the
// last sign of the hold and the end of its lease.
//
// A call that failed may have been granted at the server for a while. That can only explain a refusal, so refusals
// at such times are not checked, and the call itself need not be in the model.

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
	taken int64
	token int64 // the highest so far
}

func (s state) with(o operation) state {
	n := state{maps.Clone(s.holds), s.taken, max(s.token, o.token)}
	if !s.owned(o.owner) {
		n.taken += o.weight
	}
	n.holds[o.id] = o
	return n
}

func (s state) without(id uint64) state {
	o, present := s.holds[id]
	if !present {
		return s
	}
	n := state{maps.Clone(s.holds), s.taken, s.token}
	delete(n.holds, id)
	if !n.owned(o.owner) {
		n.taken -= o.weight
	}
	return n
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
			fits := s.owned(o.owner) || s.taken+o.weight <= room
			switch o.what {
			case acquire:
				rises := o.token == 0 || o.token > s.token || s.owned(o.owner) && o.token == s.token
				if fits && rises {
					return true, s.with(o)
				}
			case refuse:
				return !fits, s
			case end:
				if _, present := s.holds[o.id]; present {
					return true, s.without(o.id)
				}
			}
			return false, s
		},
		Equal:             func(a, b any) bool { return equal(a.(state), b.(state)) },
		DescribeOperation: func(input, _ any) string { return input.(operation).String() },
		DescribeState:     func(s any) string { return fmt.Sprintf("%d taken", s.(state).taken) },
	}
}

func equal(a, b state) bool {
	return a.taken == b.taken && a.token == b.token && maps.Equal(a.holds, b.holds)
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
		return []Fault{{"linearizable", calls[0].Object, fmt.Sprintf("no order of the %d operations explains them", len(ops))}}
	default:
		return []Fault{{"linearizable", calls[0].Object, fmt.Sprintf("undecided after %v with %d operations", limit, len(ops))}}
	}
}

func operations(calls []*history.Call, r Rules, grace time.Duration) (ops []porcupine.Operation) {
	settle := int64(r.Lease + grace)
	var doubts []Span
	for _, c := range calls {
		if c.Outcome == history.Failed || c.Outcome == history.Called {
			doubts = append(doubts, Span{c.At, after(c.Gone(), settle)})
		}
	}
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
		case c.Outcome == history.Refused && !r.Fair && !within(doubts, c.At, c.Return):
			add(refuse, c.At, c.Return)
		}
	}
	slices.SortStableFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	return ops
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
	return c.Until(), after(c.Gone(), settle)
}

// after returns an instant and a while later. Nothing comes after Never.
func after(at, while int64) int64 {
	if at > history.Never-while {
		return history.Never
	}
	return at + while
}
