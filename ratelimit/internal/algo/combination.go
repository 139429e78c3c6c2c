package algo

import (
	"math"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Combination is the algorithm of several limits that are decided together. A request for n permits takes n
// times the cost of each part. Nothing is charged ahead of time. What a request has charged to the parts is settled
// with each part alone.
type Combination struct {
	oneKey
	Parts []combinedPart
	Keys  []string // of all parts
}

type combinedPart struct {
	Algorithm Combinable
	Limit     Limit
	Cost      int64
}

// Add adds a part.
func (c *Combination) Add(key string, of Combinable, limit Limit, cost int64) {
	c.Parts = append(c.Parts, combinedPart{Algorithm: of, Limit: limit, Cost: cost})
	c.Keys = append(c.Keys, key)
}

// Most returns the number of requests that the limits can ever grant at once.
func (c *Combination) Most() int64 {
	most := int64(maxRate)
	for _, p := range c.Parts {
		most = min(most, p.Limit.Burst/p.Cost)
	}
	return most
}

// LimitOf returns only how many requests are possible at once.
func (c *Combination) LimitOf(Snapshot) (Limit, bool) {
	return Limit{Burst: c.Most()}, true
}

// Traits implements Algorithm.
func (*Combination) Traits() Traits { return Traits{AtOnce: true, Keep: keepUnused} }

// Route implements Algorithm.
func (c *Combination) Route(string) string { return c.Keys[0] } // all are on one node

// Label returns the names of the parts.
func (c *Combination) Label(string) string {
	return strings.Join(c.Keys, " and ")
}

// Script implements Algorithm.
func (*Combination) Script() *scripts.Script { return scripts.RateAll }

// Encode implements Algorithm.
func (c *Combination) Encode(_ string, a *Ask) scripts.Call {
	order := Flag(a.InOrder)
	if a.Stamped {
		order = 2
	}
	args := append(make([]any, 0, 8+5*len(c.Parts)*(1+len(a.Runs))), order, len(c.Parts))
	for _, p := range c.Parts {
		args = append(args, p.Algorithm.part()...)
	}
	args = append(args, len(a.Runs))
	for _, r := range a.Runs {
		count, n := r.Count, r.N
		if n == 0 {
			count, n = 0, 1
		}
		args = append(args, count)
		for _, p := range c.Parts {
			args = append(args, p.Algorithm.partCost(n*p.Cost)...)
		}
	}
	return scripts.RateAll.Call(c.Keys, args...)
}

// Decode implements Algorithm.
func (c *Combination) Decode(a *Ask, reply []int64, at Reading) (Answer, error) {
	from := replyReader{reply: reply}
	now := from.next(0, exact)
	got := Answer{Granted: from.granted(a.Runs), Decisions: a.room()}
	total := a.permits(got.Granted)
	charged := make([]Span, len(c.Parts))
	parts := make([]Snapshot, len(c.Parts))
	replays := make([]replayed, len(c.Parts))
	for i, p := range c.Parts {
		parts[i], replays[i], charged[i] = p.Algorithm.readPart(&from, now, total*p.Cost, a.Stamped)
	}
	if err := from.end(); err != nil {
		return Answer{}, err
	}
	got.Snapshot = &combinedSnapshot{combination: c, parts: parts}
	for k, run := range a.Runs {
		for at := range min(run.Count, int64(a.Callers)) { // each is told what it saw
			granted := at < got.Granted[k]
			results := make([]Decision, len(c.Parts))
			for i, p := range c.Parts {
				results[i] = replayOne(replays[i], run.N*p.Cost, p.Cost, granted)
			}
			r := c.Combine(run.N, results, granted)
			if r.Allowed && !granted && run.N > 0 {
				for i, p := range c.Parts {
					inPieces(replays[i], run.N*p.Cost, &results[i])
				}
				r = c.Combine(run.N, results, granted)
			}
			if r.Allowed && !granted && run.N > 0 {
				return Answer{}, scripts.Unexpected(reply) // denied although each limit grants
			}
			got.Decisions = append(got.Decisions, r)
		}
	}
	switch {
	case total == 0:
	case a.Stamped:
		got.Spans = charged
	case a.Callers == 0:
		// Only for the waiters in line when the reply came: how long it holds is not known.
		got.Spans = []Span{{N: total, From: at.Got, Until: at.Got}}
	}
	return got, nil
}

// Combine returns the result of the whole for the results of the parts.
func (c *Combination) Combine(n int64, parts []Decision, granted bool) Decision {
	r := Decision{Allowed: true, Limit: math.MaxInt64, Remaining: math.MaxInt64, Parts: parts}
	for i, of := range parts {
		cost := c.Parts[i].Cost
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

// Fit implements Algorithm: permits are used as soon as they are charged, by the requests for which they were charged.
func (c *Combination) Fit(spans []Span, n int64, since time.Duration) Fitting {
	return fitInstant(spans, n, since)
}

// Skip implements Algorithm.
func (c *Combination) Skip(s *Span, k int64) { s.N -= k }

// combinedSnapshot has the snapshots of the parts.
type combinedSnapshot struct {
	combination *Combination
	parts       []Snapshot
}

func (s *combinedSnapshot) CachedDenial(n int64, passed time.Duration) (Decision, bool) {
	parts := make([]Decision, len(s.parts))
	denies := false
	for i, of := range s.parts {
		r, denied := of.CachedDenial(n*s.combination.Parts[i].Cost, passed)
		if denies = denies || denied; !denied {
			r = of.State()
			r.Allowed, r.RetryAfter, r.ResetAfter = true, 0, max(0, r.ResetAfter-passed)
		}
		parts[i] = r
	}
	if !denies {
		return Decision{}, false
	}
	return s.combination.Combine(n, parts, false), true
}

func (s *combinedSnapshot) Wait(total int64, passed time.Duration) (longest time.Duration) {
	for i, of := range s.parts {
		cost := s.combination.Parts[i].Cost
		longest = max(longest, of.Wait(min(total, math.MaxInt64/cost)*cost, passed))
	}
	return longest
}

func (*combinedSnapshot) Keep(time.Duration, bool) time.Duration { return 0 }

func (s *combinedSnapshot) State() Decision {
	parts := make([]Decision, len(s.parts))
	for i, of := range s.parts {
		parts[i] = of.State()
		parts[i].Allowed = parts[i].RetryAfter == 0
	}
	return s.combination.Combine(1, parts, false)
}
