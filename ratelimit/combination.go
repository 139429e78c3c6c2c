package ratelimit

import (
	"math"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// combination is the algorithm of several limits that are decided together. A request for n is for n times
// the cost of each part. Nothing is charged ahead of its time.
type combination struct {
	parts []combinedPart
	keys  []string // of all parts
}

type combinedPart struct {
	id        stateID // of requests for it alone
	algorithm algorithm
	limit     Limit // zero of a log
	cost      int64
}

// mostOf is how many requests the limits can ever grant at once, as far as they are known.
func (c *combination) mostOf(last *combinedSnapshot) int64 {
	most := int64(MaxRate)
	for i, p := range c.parts {
		switch {
		case p.limit.Burst > 0:
			most = min(most, p.limit.Burst/p.cost)
		case last.log(i) != nil:
			most = min(most, last.log(i).rate/p.cost)
		default:
			most = min(most, MaxRate/p.cost)
		}
	}
	return most
}

// limitOf is only how many requests there can be at once.
func (c *combination) limitOf(known snapshot) (Limit, bool) {
	last, ok := known.(*combinedSnapshot)
	return Limit{Burst: c.mostOf(last)}, ok
}

func (*combination) script() *scripts.Script { return scripts.RateAll }

func (c *combination) encode(_ string, a *ask) scripts.Call {
	last, _ := a.last.(*combinedSnapshot)
	args := append(make([]any, 0, 8+5*len(c.parts)*(1+len(a.runs))), flag(a.inOrder), len(c.parts))
	for i, p := range c.parts {
		switch of := p.algorithm.(type) {
		case *gcra:
			args = append(append(args, "gcra"), of.head...)
		case *window:
			args = append(args, "window", of.limit.Rate, of.limit.Per.Milliseconds())
		default:
			args = append(args, "log", last.countedRate(i))
		}
	}
	a.members = a.members[:0]
	args = append(args, len(a.runs))
	for _, r := range a.runs {
		count, n := r.count, r.n
		if n == 0 {
			count, n = 0, 1
		}
		args = append(args, count)
		for _, p := range c.parts {
			switch of := p.algorithm.(type) {
			case *gcra:
				cost := of.params.cost(n * p.cost)
				args = append(args, cost.us, cost.num)
			case *window:
				args = append(args, n*p.cost)
			default:
				args = append(args, n*p.cost)
				for range count {
					m := newMember(n * p.cost)
					a.members, args = append(a.members, m), append(args, m)
				}
			}
		}
	}
	return scripts.RateAll.Call(c.keys, args...)
}

// countedRate is the rate at which the log of a part was counted lately, or nothing, which has it counted.
func (s *combinedSnapshot) countedRate(part int) string {
	if s != nil {
		if of, ok := s.parts[part].(*logSnapshot); ok && time.Since(of.counted) < recount {
			return of.rateText
		}
	}
	return ""
}

// combinedReply is what rate_all says.
type combinedReply struct {
	now     int64
	granted []int64    // of each run
	waits   [][]int64  // of each run, us that each log denies for
	states  []snapshot // of each part
}

func (c *combination) parse(a *ask, reply []int64) (r combinedReply, err error) {
	from := replyReader{reply: reply}
	logs := 0
	for _, p := range c.parts {
		if _, ok := p.algorithm.(slidingLog); ok {
			logs++
		}
	}
	r.now = from.next(0, exact)
	for _, run := range a.runs {
		r.granted = append(r.granted, from.run(run))
		waits := make([]int64, logs)
		for i := range waits {
			waits[i] = from.next(-1, exact)
		}
		r.waits = append(r.waits, waits)
	}
	for _, p := range c.parts {
		switch of := p.algorithm.(type) {
		case *gcra:
			r.states = append(r.states, &gcraSnapshot{gcra: of, now: r.now, tat: from.time(of.params)})
		case *window:
			r.states = append(r.states, readWindow(of, &from))
		default:
			r.states = append(r.states, readLog(&from))
		}
	}
	return r, from.end()
}

func (c *combination) decode(a *ask, reply []int64, at reading) (answer, error) {
	r, err := c.parse(a, reply)
	if err != nil {
		return answer{}, err
	}
	got := answer{granted: r.granted}
	var total int64
	for k, run := range a.runs {
		total += r.granted[k] * run.n
	}
	last, _ := a.last.(*combinedSnapshot)
	now := &combinedSnapshot{combination: c, parts: make([]snapshot, len(c.parts))}
	got.snapshot = now
	replays := make([]replay, len(c.parts))
	members := a.members
	logs := 0
	for i, p := range c.parts {
		now.parts[i] = r.states[i]
		switch s := r.states[i].(type) {
		case *gcraSnapshot:
			params := s.gcra.params
			replays[i] = &gcraReplay{s, params.sub(s.tat, params.cost(total*p.cost))}
		case *windowSnapshot:
			before := *s
			before.used -= total * p.cost
			replays[i] = &windowReplay{before}
		case *logSnapshot:
			s.countedAs(last.countedRate(i), last.log(i))
			replays[i] = &logReplay{logSnapshot: s, left: s.left + total*p.cost, waits: logs, reply: &r}
			logs++
		}
	}
	// Tell each caller what it saw.
	calls := a.calls
	for k, run := range a.runs {
		for i := range c.parts {
			if of, ok := replays[i].(*logReplay); ok {
				of.next(k, run, c.parts[i].cost, &members, &got)
			}
		}
		for at := range run.count {
			granted := at < r.granted[k]
			if !granted && len(calls) == 0 {
				break // of waiters
			}
			parts := make([]Result, len(c.parts))
			for i, p := range c.parts {
				parts[i] = replays[i].decide(run.n*p.cost, p.cost, granted)
			}
			if len(calls) > 0 {
				calls[0].res = c.combine(run.n, parts, granted)
				if !granted && got.exceeding {
					calls[0].err = ErrExceedsLimit
				}
				calls = calls[1:]
			}
		}
	}
	if len(a.calls) == 0 && total > 0 {
		// For those that were in line when the answer came; there is no telling for how long it holds.
		got.spans = []span{{n: total, from: at.got, until: at.got}}
	}
	return got, nil
}

// combine makes one result of those of the parts.
func (c *combination) combine(n int64, parts []Result, granted bool) Result {
	r := Result{Allowed: true, Limit: math.MaxInt64, Remaining: math.MaxInt64, Parts: parts}
	for i, of := range parts {
		cost := c.parts[i].cost
		if of.Remaining/cost < r.Remaining {
			r.Remaining, r.Limit = of.Remaining/cost, of.Limit/cost
		}
		r.Allowed = r.Allowed && of.Allowed
		r.RetryAfter, r.ResetAfter = max(r.RetryAfter, of.RetryAfter), max(r.ResetAfter, of.ResetAfter)
	}
	if granted {
		r.Allowed, r.Granted, r.RetryAfter = true, n, 0
	}
	return r
}

// fit: permits are used as soon as they are charged, by requests that were there.
func (c *combination) fit(spans []span, n int64, since time.Duration) fitting {
	return (*window)(nil).fit(spans, n, since)
}

func (c *combination) skip(s *span, k int64) { s.n -= k }

// combinedSnapshot is what each part says.
type combinedSnapshot struct {
	combination *combination
	parts       []snapshot
}

func (s *combinedSnapshot) log(part int) *logSnapshot {
	if s == nil {
		return nil
	}
	of, _ := s.parts[part].(*logSnapshot)
	return of
}

func (s *combinedSnapshot) cachedDenial(n int64, passed time.Duration) (Result, bool) {
	parts := make([]Result, len(s.parts))
	denies := false
	for i, of := range s.parts {
		r, denied := of.cachedDenial(n*s.combination.parts[i].cost, passed)
		if denies = denies || denied; !denied {
			r = of.state()
			r.Allowed, r.RetryAfter, r.ResetAfter = true, 0, max(0, r.ResetAfter-passed)
		}
		parts[i] = r
	}
	if !denies {
		return Result{}, false
	}
	return s.combination.combine(n, parts, false), true
}

func (s *combinedSnapshot) wait(total int64, passed time.Duration) (longest time.Duration) {
	for i, of := range s.parts {
		cost := s.combination.parts[i].cost
		longest = max(longest, of.wait(min(total, math.MaxInt64/cost)*cost, passed))
	}
	return longest
}

func (s *combinedSnapshot) state() Result {
	parts := make([]Result, len(s.parts))
	for i, of := range s.parts {
		parts[i] = of.state()
		parts[i].Allowed = parts[i].RetryAfter == 0
	}
	return s.combination.combine(1, parts, false)
}

// replay tells what each of several requests saw of one part. n = 0 looks whether one request would be
// granted, which costs so much.
type replay interface {
	decide(n, one int64, granted bool) Result
}

type gcraReplay struct {
	*gcraSnapshot
	tat gcraTime
}

func (g *gcraReplay) decide(n, one int64, granted bool) Result {
	p := g.gcra.params
	if granted {
		g.tat = p.add(g.tat, p.cost(n))
		r := g.result(g.tat, g.now, n)
		r.Allowed, r.Granted, r.RetryAfter = true, n, 0
		return r
	}
	r := g.result(g.tat, g.now, max(n, one))
	r.Allowed = r.RetryAfter == 0
	return r
}

type windowReplay struct{ windowSnapshot }

func (w *windowReplay) decide(n, one int64, granted bool) Result {
	if granted {
		w.used += n
		r := w.result(n, 0)
		r.Allowed, r.Granted, r.RetryAfter = true, n, 0
		return r
	}
	r := w.result(max(n, one), 0)
	r.Allowed = r.RetryAfter == 0
	return r
}

// countedAs notes when the whole log was counted: now, unless the script was told a rate at which it was.
func (s *logSnapshot) countedAs(rate string, last *logSnapshot) {
	s.counted = time.Now()
	if last != nil && rate == s.rateText {
		s.counted = last.counted
	}
}

type logReplay struct {
	*logSnapshot
	left    int64
	waits   int // its place among the logs
	reply   *combinedReply
	delay   time.Duration // of the requests of the run that are denied
	members []string
}

// next begins a run.
func (l *logReplay) next(k int, run equalRequests, cost int64, members *[]string, got *answer) {
	l.delay = 0
	if run.n > 0 {
		l.members, *members = (*members)[:run.count], (*members)[run.count:]
	}
	switch waits := l.reply.waits[k][l.waits]; {
	case waits < 0:
		got.exceeding = true
	case waits > 0:
		l.delay = micros(waits)
		l.denies(max(run.n, 1)*cost, l.delay)
	}
}

func (l *logReplay) decide(n, _ int64, granted bool) Result {
	r := Result{Limit: l.rate, ResetAfter: l.reset}
	if granted {
		l.left -= n
		r.Allowed, r.Granted = true, n
		r.grant = []entry{{member: l.members[0]}}
		l.members = l.members[1:]
	} else {
		r.RetryAfter = l.delay
		r.Allowed = l.delay == 0
	}
	r.Remaining = max(0, l.left)
	return r
}

// decideAll is the policy's answer to a request for several limits that Redis did not answer because of err.
func (b *breaker) decideAll(c *combination, n int64, known snapshot, err error) (Result, error) {
	last, _ := known.(*combinedSnapshot)
	shares := make([]share, len(c.parts))
	all := true // limits are known
	for i, p := range c.parts {
		limit, is := p.algorithm.limitOf(snapshot(nil))
		if of := last.log(i); of != nil {
			limit, is = p.algorithm.limitOf(of)
		}
		if all = all && is; is {
			shares[i] = share{p.id, n * p.cost, limit}
		}
	}
	if b.policy.kind != shareLocally || !all {
		r, err := b.decide(stateID{}, n, Limit{Burst: c.mostOf(last)}, false, err)
		if err == nil {
			for i, p := range c.parts {
				r.Parts = append(r.Parts, Result{
					Allowed: true, Granted: n * p.cost, Limit: shares[i].part.Burst, Source: SourceDegraded,
				})
			}
		}
		return r, err
	}
	for i := range shares {
		shares[i].part = b.policy.part(shares[i].part)
	}
	granted, results := b.share.decideAll(shares)
	r := c.combine(n, results, granted && n > 0)
	r.Source = SourceDegraded
	return r, nil
}
