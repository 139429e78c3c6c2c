package algo

import (
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// gcra is the generic cell rate algorithm.
type gcra struct {
	oneLimit
	params GCRAParams
	// Arguments of every script: the limit, and the worth of one permit.
	head, one []any
}

func newGCRA(limit Limit) *gcra {
	p := NewGCRAParams(limit)
	cost := p.Cost(1)
	return &gcra{
		oneLimit: oneLimit{limit: limit}, params: p,
		head: []any{p.Den, p.full.Micros, p.full.Num, p.burstSeconds()}, one: []any{cost.Micros, cost.Num},
	}
}

func (*gcra) Traits() Traits { return Traits{CanGiveBack: true, Reserves: true, Keep: keepUnused} }

func (g *gcra) Script() *scripts.Script { return scripts.RateGCRA }

func (g *gcra) Encode(key string, a *Ask) scripts.Call {
	size := 5 + 3*len(a.Runs) + 3 + 7*len(a.Back) + 2*len(a.Runs) + 3
	args := append(append(make([]any, 0, size), g.head...), len(a.Runs))
	for _, r := range a.Runs {
		switch r.N {
		case 0:
			args = append(args, 0, 0, 0)
		case 1:
			args = append(append(args, g.one...), r.Count)
		default:
			cost := g.params.Cost(r.N)
			args = append(args, cost.Micros, cost.Num, r.Count)
		}
	}
	switch {
	case a.InOrder:
		args = append(args, a.Ahead.Microseconds(), Flag(a.Holds), len(a.Back))
	case a.Settles():
		args = append(args, "", 0, len(a.Back))
	}
	for _, part := range a.Back {
		cost := g.params.Cost(part.N)
		end := g.params.Add(part.Start, cost)
		args = append(args, part.Period, part.returned, end.Micros, end.Num, cost.Micros, cost.Num, Flag(part.ahead))
	}
	if a.InOrder {
		args = g.appendBounds(args, a)
	}
	if a.Debt > 0 {
		cost := g.params.Cost(a.Debt)
		args = append(args, cost.Micros, cost.Num, g.params.Cost(a.Most).Micros)
	}
	call := scripts.RateGCRA.Call([]string{key}, args...)
	last, _ := a.Last.(*gcraSnapshot)
	call.Alone = len(a.Runs) != 1 || a.InOrder || a.Settles() || last != nil && last.places
	return call
}

// appendBounds appends how early the permits of each run may be charged. Only a deadline counts to the end of the
// permits, so that a request for many is not overtaken by requests for few.
func (g *gcra) appendBounds(args []any, a *Ask) []any {
	for _, r := range a.Runs {
		switch {
		case r.Within == 0 && !r.Alone:
			args = append(args, a.Ahead.Microseconds(), 0)
		case !r.Alone:
			args = append(args, r.Within.Microseconds()+g.params.Cost(r.N).Micros, 0)
		default:
			args = append(args, r.Within.Microseconds(), 1)
		}
	}
	return args
}

func (g *gcra) Decode(a *Ask, reply []int64, at Reading) (Answer, error) {
	p, r := g.params, replyReader{reply: reply}
	s := &gcraSnapshot{gcra: g, now: r.next(0, exact), tat: r.time(p)}
	got := Answer{Snapshot: s}
	settled := r.next(0, exact)
	got.TakenBack = len(a.Back) > 0 && settled > 0
	if got.Booked = a.Debt; settled < p.Cost(a.Debt).RoundUp() {
		got.Booked = p.whole(settled)
	}
	got.Granted = r.granted(a.Runs)
	at.server = s.now
	if a.InOrder {
		g.readPlaces(a, &r, at, &got)
	}
	if s.places = r.more(); s.places {
		s.pieces = r.next(0, exact)
		s.room = r.next(0, s.pieces)
	}
	n := a.permits(got.Granted)
	r.bad = r.bad || !a.InOrder && s.grantsAhead(n)
	if err := r.end(); err != nil {
		return Answer{}, err
	}
	after, room := s.tat, s.room
	s.tat = p.sub(s.tat, p.Cost(n))
	got.Decisions = a.replay(got.Granted, s) // charges the grants of callers; waiters are none
	s.tat, s.room = after, room
	return got, nil
}

// readPlaces reads the places of the granted requests.
func (g *gcra) readPlaces(a *Ask, r *replyReader, at Reading, got *Answer) {
	p := g.params
	period, returned, owed := r.next(0, exact), r.next(0, exact), r.next(0, exact)
	got.Period = period
	zone := p.Add(GCRATime{Micros: at.server}, p.full)
	for k, run := range a.Runs {
		for left := got.Granted[k]; left > 0 && !r.bad; {
			end, count := r.time(p), r.next(1, left)
			left -= count
			n := count * run.N
			start := p.sub(end, p.Cost(n))
			r.bad = r.bad || start.Micros < at.server-1
			charged := Span{N: n, Unit: run.N, Start: start, At: at, Period: period, returned: returned}
			if charged.ahead = zone.Less(end); charged.ahead {
				charged.returned -= owed
			}
			got.Spans = append(got.Spans, charged)
		}
	}
}

// Fit: the permits of one request can be used a whole burst before the end of the last one.
func (g *gcra) Fit(spans []Span, n int64, _ time.Duration) Fitting {
	p, first := g.params, &spans[0]
	from := p.sub(p.Add(first.Start, p.Cost(n)), p.full)
	return Fitting{At: first.At.notBefore(from.RoundUp())}
}

func (g *gcra) Skip(s *Span, k int64) {
	s.N -= k
	s.Start = g.params.Add(s.Start, g.params.Cost(k))
}

type gcraSnapshot struct {
	gcra   *gcra
	now    int64
	tat    GCRATime
	pieces int64 // us by which the end of all places is later than tat, if there are permits in pieces before
	room   int64 // us of the first piece
	places bool  // the script had to read places: the script for many keys leaves the state to it
}

// grantsAhead reports whether the state that n granted permits have left cannot be: they are charged to it or to the
// pieces.
func (s *gcraSnapshot) grantsAhead(n int64) bool {
	least := GCRATime{Micros: s.now}
	if n > 0 && s.pieces == 0 {
		least = s.gcra.params.Add(least, s.gcra.params.Cost(n))
	}
	return n > 0 && s.tat.Less(least)
}

// behind returns how long after the script n permits can be used that have no room in the pieces, or 0 if there are
// none.
func (s *gcraSnapshot) behind(n int64) time.Duration {
	if s.pieces == 0 {
		return 0
	}
	return s.gcra.params.Delay(s.gcra.params.Add(s.tat, GCRATime{Micros: s.pieces}), s.now, n)
}

func (s *gcraSnapshot) charge(n int64) {
	p := &s.gcra.params
	cost := p.Cost(n)
	s.tat, s.room = p.Add(s.tat, cost), max(0, s.room-cost.Micros)
}

func (s *gcraSnapshot) granted() Decision { return s.resultAt(s.now, 0) }

func (s *gcraSnapshot) result(n int64, passed time.Duration) Decision {
	now := s.after(passed)
	return s.resultAt(now, s.gcra.params.Delay(s.tat, now, n))
}

// after returns the server's time when the given time has passed since the script, rounded up.
func (s *gcraSnapshot) after(passed time.Duration) int64 {
	return s.now + (passed + time.Microsecond - 1).Microseconds()
}

// resultAt returns the result at an instant for a request that can be granted after a delay.
func (s *gcraSnapshot) resultAt(now int64, delay time.Duration) Decision {
	p := &s.gcra.params
	r := Decision{
		Limit:      s.gcra.limit.Burst,
		Remaining:  p.Remaining(s.tat, now),
		RetryAfter: delay,
		ResetAfter: p.Reset(s.tat, now),
	}
	if s.pieces > 0 {
		r.Remaining = min(r.Remaining, p.whole(s.room))
		r.ResetAfter = p.Reset(p.Add(s.tat, GCRATime{Micros: s.pieces}), now)
	}
	return r
}

// CachedDenial holds for any request: other processes can only have moved tat further.
func (s *gcraSnapshot) CachedDenial(n int64, passed time.Duration) (Decision, bool) {
	now := s.after(passed)
	delay := s.gcra.params.Delay(s.tat, now, n)
	if delay == 0 {
		return Decision{}, false
	}
	r := s.resultAt(now, delay)
	r.RetryAfter = max(r.RetryAfter, s.behind(n)-passed)
	return r, true
}

func (s *gcraSnapshot) Wait(total int64, passed time.Duration) time.Duration {
	return s.gcra.params.Delay(s.tat, s.now+passed.Microseconds(), total)
}

func (s *gcraSnapshot) State() Decision { return s.result(1, 0) }

func (*gcraSnapshot) Keep(time.Duration, bool) time.Duration { return 0 }

func (g *gcra) part() []any { return append([]any{"gcra"}, g.head...) }

func (g *gcra) partCost(n int64) []any {
	cost := g.params.Cost(n)
	return []any{cost.Micros, cost.Num}
}

func (g *gcra) readPart(r *replyReader, now, n int64, stamped bool) (Snapshot, replayed, Span) {
	s := &gcraSnapshot{gcra: g, now: now, tat: r.time(g.params), pieces: r.next(0, exact), room: r.next(0, exact)}
	before := *s
	before.tat = g.params.sub(s.tat, g.params.Cost(n))
	charged := Span{N: n}
	r.bad = r.bad || s.grantsAhead(n)
	if stamped {
		charged.Period, charged.returned = r.next(0, exact), r.next(0, exact)
		charged.Start = g.params.sub(r.time(g.params), g.params.Cost(n))
	}
	return s, &before, charged
}

// Flag returns a truth value as scripts take it.
func Flag(is bool) int {
	if is {
		return 1
	}
	return 0
}
