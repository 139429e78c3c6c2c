package ratelimit

import (
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// gcra is the generic cell rate algorithm.
type gcra struct {
	oneLimit
	params gcraParams
	// Arguments of every script: the limit, and the worth of one permit.
	head, one []any
}

func newGCRA(limit algoLimit) *gcra {
	p := newGCRAParams(limit)
	cost := p.cost(1)
	return &gcra{
		oneLimit: oneLimit{limit: limit}, params: p,
		head: []any{p.den, p.full.us, p.full.num, p.burstSeconds()}, one: []any{cost.us, cost.num},
	}
}

func (*gcra) traits() traits { return traits{canGiveBack: true, reserves: true, keep: keepUnused} }

func (g *gcra) script() *scripts.Script { return scripts.RateGCRA }

func (g *gcra) encode(key string, a *ask) scripts.Call {
	size := 5 + 3*len(a.runs) + 3 + 7*len(a.back) + 2*len(a.runs) + 3
	args := append(append(make([]any, 0, size), g.head...), len(a.runs))
	for _, r := range a.runs {
		switch r.n {
		case 0:
			args = append(args, 0, 0, 0)
		case 1:
			args = append(append(args, g.one...), r.count)
		default:
			cost := g.params.cost(r.n)
			args = append(args, cost.us, cost.num, r.count)
		}
	}
	switch {
	case a.inOrder:
		args = append(args, a.ahead.Microseconds(), flag(a.holds), len(a.back))
	case a.settles():
		args = append(args, "", 0, len(a.back))
	}
	for _, part := range a.back {
		cost := g.params.cost(part.n)
		end := g.params.add(part.start, cost)
		args = append(args, part.period, part.returned, end.us, end.num, cost.us, cost.num, flag(part.ahead))
	}
	if a.inOrder {
		args = g.appendBounds(args, a)
	}
	if a.debt > 0 {
		cost := g.params.cost(a.debt)
		args = append(args, cost.us, cost.num, g.params.cost(a.most).us)
	}
	return scripts.RateGCRA.Call([]string{key}, args...)
}

// appendBounds appends how early the permits of each run may be charged. Only a deadline counts to the end of the
// permits, so that a request for many is not overtaken by requests for few.
func (g *gcra) appendBounds(args []any, a *ask) []any {
	for _, r := range a.runs {
		switch {
		case r.within == 0 && !r.alone:
			args = append(args, a.ahead.Microseconds(), 0)
		case !r.alone:
			args = append(args, r.within.Microseconds()+g.params.cost(r.n).us, 0)
		default:
			args = append(args, r.within.Microseconds(), 1)
		}
	}
	return args
}

func (g *gcra) decode(a *ask, reply []int64, at reading) (answer, error) {
	p, r := g.params, replyReader{reply: reply}
	s := &gcraSnapshot{gcra: g, now: r.next(0, exact), tat: r.time(p)}
	got := answer{snapshot: s}
	settled := r.next(0, exact)
	if got.takenBack = len(a.back) > 0 && settled > 0; !a.settles() {
		s.pieces = settled
	}
	if got.booked = a.debt; settled < p.cost(a.debt).roundUp() {
		got.booked = p.whole(settled)
	}
	got.granted = r.granted(a.runs)
	at.server = s.now
	if a.inOrder {
		g.readPlaces(a, &r, at, &got)
	}
	if s.pieces > 0 {
		s.room = r.next(0, s.pieces)
	}
	n := a.permits(got.granted)
	r.bad = r.bad || !a.inOrder && s.grantsAhead(n)
	if err := r.end(); err != nil {
		return answer{}, err
	}
	after := s.tat
	s.tat = p.sub(s.tat, p.cost(n))
	got.decisions = a.replay(got.granted, s) // charges the grants of callers; waiters are none
	s.tat = after
	return got, nil
}

// readPlaces reads the places of the granted requests.
func (g *gcra) readPlaces(a *ask, r *replyReader, at reading, got *answer) {
	p := g.params
	period, returned, owed := r.next(0, exact), r.next(0, exact), r.next(0, exact)
	got.period = period
	zone := p.add(gcraTime{us: at.server}, p.full)
	for k, run := range a.runs {
		for left := got.granted[k]; left > 0 && !r.bad; {
			end, count := r.time(p), r.next(1, left)
			left -= count
			n := count * run.n
			start := p.sub(end, p.cost(n))
			r.bad = r.bad || start.us < at.server-1
			charged := span{n: n, unit: run.n, start: start, at: at, period: period, returned: returned}
			if charged.ahead = zone.less(end); charged.ahead {
				charged.returned -= owed
			}
			got.spans = append(got.spans, charged)
		}
	}
}

// fit: the permits of one request can be used a whole burst before the end of the last one.
func (g *gcra) fit(spans []span, n int64, _ time.Duration) fitting {
	p, first := g.params, &spans[0]
	from := p.sub(p.add(first.start, p.cost(n)), p.full)
	return fitting{at: first.at.notBefore(from.roundUp())}
}

func (g *gcra) skip(s *span, k int64) {
	s.n -= k
	s.start = g.params.add(s.start, g.params.cost(k))
}

type gcraSnapshot struct {
	gcra   *gcra
	now    int64
	tat    gcraTime
	pieces int64 // us by which the end of all places is later than tat, if there are permits in pieces before
	room   int64 // us of the first piece
}

// grantsAhead reports whether the state that n granted permits have left cannot be: they are charged to it or to the
// pieces.
func (s *gcraSnapshot) grantsAhead(n int64) bool {
	least := gcraTime{us: s.now}
	if n > 0 && s.pieces == 0 {
		least = s.gcra.params.add(least, s.gcra.params.cost(n))
	}
	return n > 0 && s.tat.less(least)
}

// behind returns how long after the script n permits can be used that have no room in the pieces, or 0 if there are
// none.
func (s *gcraSnapshot) behind(n int64) time.Duration {
	if s.pieces == 0 {
		return 0
	}
	return s.gcra.params.delay(s.gcra.params.add(s.tat, gcraTime{us: s.pieces}), s.now, n)
}

func (s *gcraSnapshot) charge(n int64) {
	p := s.gcra.params
	s.tat, s.room = p.add(s.tat, p.cost(n)), max(0, s.room-p.cost(n).us)
}

func (s *gcraSnapshot) result(n int64, passed time.Duration) decision {
	p, now := s.gcra.params, s.now+(passed+time.Microsecond-1).Microseconds()
	r := decision{
		Limit:      s.gcra.limit.Burst,
		Remaining:  p.remaining(s.tat, now),
		RetryAfter: p.delay(s.tat, now, n),
		ResetAfter: p.reset(s.tat, now),
	}
	if s.pieces > 0 {
		r.Remaining = min(r.Remaining, p.whole(s.room))
		r.ResetAfter = p.reset(p.add(s.tat, gcraTime{us: s.pieces}), now)
	}
	return r
}

// cachedDenial holds for any request: other processes can only have moved tat further.
func (s *gcraSnapshot) cachedDenial(n int64, passed time.Duration) (decision, bool) {
	now := s.now + (passed + time.Microsecond - 1).Microseconds()
	if s.gcra.params.delay(s.tat, now, n) == 0 {
		return decision{}, false
	}
	r := s.result(n, passed)
	r.RetryAfter = max(r.RetryAfter, s.behind(n)-passed)
	return r, true
}

func (s *gcraSnapshot) wait(total int64, passed time.Duration) time.Duration {
	return s.gcra.params.delay(s.tat, s.now+passed.Microseconds(), total)
}

func (s *gcraSnapshot) state() decision { return s.result(1, 0) }

func (*gcraSnapshot) keep(time.Duration, bool) time.Duration { return 0 }

func (g *gcra) part() []any { return append([]any{"gcra"}, g.head...) }

func (g *gcra) partCost(n int64) []any {
	cost := g.params.cost(n)
	return []any{cost.us, cost.num}
}

func (g *gcra) readPart(r *replyReader, now, n int64, stamped bool) (snapshot, replayed, span) {
	s := &gcraSnapshot{gcra: g, now: now, tat: r.time(g.params), pieces: r.next(0, exact), room: r.next(0, exact)}
	before := *s
	before.tat = g.params.sub(s.tat, g.params.cost(n))
	charged := span{n: n}
	r.bad = r.bad || s.grantsAhead(n)
	if stamped {
		charged.period, charged.returned = r.next(0, exact), r.next(0, exact)
		charged.start = g.params.sub(r.time(g.params), g.params.cost(n))
	}
	return s, &before, charged
}

// flag returns a truth value as scripts take it.
func flag(is bool) int {
	if is {
		return 1
	}
	return 0
}
