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

func newGCRA(limit Limit) *gcra {
	g := &gcra{oneLimit: oneLimit{limit: limit}, params: newGCRAParams(limit)}
	g.head = g.cap(0)
	cost := g.params.cost(1)
	g.one = []any{cost.us, cost.num}
	return g
}

// cap returns the bound on the state as the script takes it; ahead is how far beyond a full burst it may grant.
func (g *gcra) cap(ahead time.Duration) []any {
	p := g.params
	return []any{p.den, p.full.us + ahead.Microseconds(), p.full.num, p.burstSeconds()}
}

func (*gcra) traits() traits { return traits{canGiveBack: true, keep: lookPeriod} }

func (g *gcra) script() *scripts.Script { return scripts.RateGCRA }

func (g *gcra) encode(key string, a *ask) scripts.Call {
	head := g.head
	if a.ahead > 0 {
		head = g.cap(a.ahead)
	}
	size := 5 + 3*len(a.runs) + 2 + 6*len(a.back) + 3
	args := append(append(make([]any, 0, size), head...), len(a.runs))
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
	case a.inOrder && a.stamped:
		args = append(args, a.ahead.Microseconds(), len(a.back))
	case a.inOrder:
		args = append(args, "line", len(a.back))
	case a.settles():
		args = append(args, "", len(a.back))
	}
	for _, part := range a.back {
		cost := g.params.cost(part.n)
		end := g.params.add(part.start, cost)
		args = append(args, part.period, part.returned, end.us, end.num, cost.us, cost.num)
	}
	if a.debt > 0 {
		cost := g.params.cost(a.debt)
		args = append(args, cost.us, cost.num, g.params.cost(a.most).us)
	}
	return scripts.RateGCRA.Call([]string{key}, args...)
}

func (g *gcra) decode(a *ask, reply []int64, at reading) (answer, error) {
	p, r := g.params, replyReader{reply: reply}
	s := &gcraSnapshot{gcra: g, now: r.next(0, exact), tat: r.time(p)}
	got := answer{snapshot: s}
	settled := r.next(0, exact)
	got.takenBack = len(a.back) > 0 && settled > 0
	if got.booked = a.debt; settled < p.cost(a.debt).us {
		got.booked = p.worth(settled)
		if (gcraTime{us: settled}).less(p.cost(got.booked)) {
			got.booked-- // whole permits
		}
	}
	got.granted = r.granted(a.runs)
	var period, returned int64
	if a.inOrder {
		period, returned = r.next(0, exact), r.next(0, exact)
	}
	n := a.permits(got.granted)
	if n > 0 && s.tat.less(p.add(gcraTime{us: s.now}, p.cost(n))) { // the grant lies ahead of now
		r.bad = true
	}
	if err := r.end(); err != nil {
		return answer{}, err
	}
	at.server = s.now
	after, before := s.tat, p.sub(s.tat, p.cost(n))
	if a.needsSpans() && n > 0 {
		got.spans = []span{{n: n, start: before, at: at, period: period, returned: returned}}
	}
	s.tat = before
	a.replay(got.granted, s) // charges the grants of calls; waiters have no calls
	s.tat = after
	return got, nil
}

// fit: the permits of one request lie within one burst, and the request existed before the first of them was
// overdue.
func (g *gcra) fit(spans []span, n int64, since time.Duration) fitting {
	p, first := g.params, &spans[0]
	if early := since - first.at.notAfter(first.start.us); early > 0 {
		return fitting{drop: min(first.n, p.worth(int64((early+time.Microsecond-1)/time.Microsecond)))}
	}
	left := n
	for i := range spans {
		s := &spans[i]
		if left > s.n {
			left -= s.n
			continue
		}
		from := p.sub(p.add(s.start, p.cost(left)), p.full)
		if first.start.less(from) {
			return fitting{drop: min(first.n, p.worth(p.sub(from, first.start).roundUp()))}
		}
		return fitting{at: s.at.notBefore(from.roundUp())}
	}
	return fitting{missing: left}
}

func (g *gcra) skip(s *span, k int64) {
	s.n -= k
	s.start = g.params.add(s.start, g.params.cost(k))
}

type gcraSnapshot struct {
	gcra *gcra
	now  int64
	tat  gcraTime
}

func (s *gcraSnapshot) charge(n int64) { s.tat = s.gcra.params.add(s.tat, s.gcra.params.cost(n)) }

func (s *gcraSnapshot) result(n int64, passed time.Duration) Result {
	p, now := s.gcra.params, s.now+(passed+time.Microsecond-1).Microseconds()
	return Result{
		Limit:      s.gcra.limit.Burst,
		Remaining:  p.remaining(s.tat, now),
		RetryAfter: p.delay(s.tat, now, n),
		ResetAfter: p.reset(s.tat, now),
	}
}

// cachedDenial holds for any request: other processes can only have moved tat further.
func (s *gcraSnapshot) cachedDenial(n int64, passed time.Duration) (Result, bool) {
	now := s.now + (passed + time.Microsecond - 1).Microseconds()
	if s.gcra.params.delay(s.tat, now, n) == 0 {
		return Result{}, false
	}
	return s.result(n, passed), true
}

func (s *gcraSnapshot) wait(total int64, passed time.Duration) time.Duration {
	return s.gcra.params.delay(s.tat, s.now+passed.Microseconds(), total)
}

func (s *gcraSnapshot) state() Result { return s.result(1, 0) }

func (*gcraSnapshot) keep(time.Duration, bool) time.Duration { return 0 }

func (g *gcra) part() []any { return append([]any{"gcra"}, g.head...) }

func (g *gcra) partCost(n int64) []any {
	cost := g.params.cost(n)
	return []any{cost.us, cost.num}
}

func (g *gcra) readPart(r *replyReader, now, n int64, stamped bool) (snapshot, replayed, span) {
	s := &gcraSnapshot{gcra: g, now: now, tat: r.time(g.params)}
	before := *s
	before.tat = g.params.sub(s.tat, g.params.cost(n))
	charged := span{n: n, start: before.tat}
	if stamped {
		charged.period, charged.returned = r.next(0, exact), r.next(0, exact)
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
