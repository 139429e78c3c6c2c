package ratelimit

import (
	"math"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// combination is the algorithm of several limits that are decided together. A request for n permits takes n
// times the cost of each part. Nothing is charged ahead of time. What a request has charged to the parts is settled
// with each part alone.
type combination struct {
	oneKey
	parts []combinedPart
	keys  []string // of all parts
}

type combinedPart struct {
	algorithm combinable
	limit     algoLimit
	cost      int64
}

// add adds a part.
func (c *combination) add(key string, of combinable, limit algoLimit, cost int64) {
	c.parts = append(c.parts, combinedPart{algorithm: of, limit: limit, cost: cost})
	c.keys = append(c.keys, key)
}

// most returns the number of requests that the limits can ever grant at once.
func (c *combination) most() int64 {
	most := int64(maxRate)
	for _, p := range c.parts {
		most = min(most, p.limit.Burst/p.cost)
	}
	return most
}

// limitOf returns only how many requests are possible at once.
func (c *combination) limitOf(snapshot) (algoLimit, bool) {
	return algoLimit{Burst: c.most()}, true
}

func (*combination) traits() traits { return traits{atOnce: true, keep: keepUnused} }

func (c *combination) route(string) string { return c.keys[0] } // all are on one node

// label returns the names of the parts.
func (c *combination) label(string) string {
	return strings.Join(c.keys, " and ")
}

func (*combination) script() *scripts.Script { return scripts.RateAll }

func (c *combination) encode(_ string, a *ask) scripts.Call {
	order := flag(a.inOrder)
	if a.stamped {
		order = 2
	}
	args := append(make([]any, 0, 8+5*len(c.parts)*(1+len(a.runs))), order, len(c.parts))
	for _, p := range c.parts {
		args = append(args, p.algorithm.part()...)
	}
	args = append(args, len(a.runs))
	for _, r := range a.runs {
		count, n := r.count, r.n
		if n == 0 {
			count, n = 0, 1
		}
		args = append(args, count)
		for _, p := range c.parts {
			args = append(args, p.algorithm.partCost(n*p.cost)...)
		}
	}
	return scripts.RateAll.Call(c.keys, args...)
}

func (c *combination) decode(a *ask, reply []int64, at reading) (answer, error) {
	from := replyReader{reply: reply}
	now := from.next(0, exact)
	got := answer{granted: from.granted(a.runs)}
	total := a.permits(got.granted)
	charged := make([]span, len(c.parts))
	parts := make([]snapshot, len(c.parts))
	replays := make([]replayed, len(c.parts))
	for i, p := range c.parts {
		parts[i], replays[i], charged[i] = p.algorithm.readPart(&from, now, total*p.cost, a.stamped)
	}
	if err := from.end(); err != nil {
		return answer{}, err
	}
	got.snapshot = &combinedSnapshot{combination: c, parts: parts}
	for k, run := range a.runs {
		for at := range min(run.count, int64(a.callers)) { // each is told what it saw
			granted := at < got.granted[k]
			results := make([]decision, len(c.parts))
			for i, p := range c.parts {
				results[i] = replayOne(replays[i], run.n*p.cost, p.cost, granted)
			}
			r := c.combine(run.n, results, granted)
			if r.Allowed && !granted && run.n > 0 {
				for i, p := range c.parts {
					inPieces(replays[i], run.n*p.cost, &results[i])
				}
				r = c.combine(run.n, results, granted)
			}
			if r.Allowed && !granted && run.n > 0 {
				return answer{}, scripts.Unexpected(reply) // denied although each limit grants
			}
			got.decisions = append(got.decisions, r)
		}
	}
	switch {
	case total == 0:
	case a.stamped:
		got.spans = charged
	case a.callers == 0:
		// Only for the waiters in line when the reply came: how long it holds is not known.
		got.spans = []span{{n: total, from: at.got, until: at.got}}
	}
	return got, nil
}

// combine returns the result of the whole for the results of the parts.
func (c *combination) combine(n int64, parts []decision, granted bool) decision {
	r := decision{Allowed: true, Limit: math.MaxInt64, Remaining: math.MaxInt64, Parts: parts}
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

// fit: permits are used as soon as they are charged, by the requests for which they were charged.
func (c *combination) fit(spans []span, n int64, since time.Duration) fitting {
	return fitInstant(spans, n, since)
}

func (c *combination) skip(s *span, k int64) { s.n -= k }

// combinedSnapshot has the snapshots of the parts.
type combinedSnapshot struct {
	combination *combination
	parts       []snapshot
}

func (s *combinedSnapshot) cachedDenial(n int64, passed time.Duration) (decision, bool) {
	parts := make([]decision, len(s.parts))
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
		return decision{}, false
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

func (*combinedSnapshot) keep(time.Duration, bool) time.Duration { return 0 }

func (s *combinedSnapshot) state() decision {
	parts := make([]decision, len(s.parts))
	for i, of := range s.parts {
		parts[i] = of.state()
		parts[i].Allowed = parts[i].RetryAfter == 0
	}
	return s.combination.combine(1, parts, false)
}
