package outage

import (
	"time"

	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
)

// Policy is a ratelimit.Policy.
type Policy struct {
	Kind  Kind
	Share int64 // of Share: the number of processes
}

// Kind is what decides while Redis is down.
type Kind uint8

// The kinds.
const (
	Closed Kind = iota // nobody
	Open               // every request is granted
	Share              // a part of the limit
)

// ID identifies a key. What was used under one limit of a key counts as time under the others, as in Redis.
type ID struct {
	Algorithm uint8
	Key       string
}

// Decide returns the decision of the policy on a request, or false if it has none. known means that the limit is known.
func (b *Breakers) Decide(r Request, known bool) (algo.Decision, bool) {
	switch {
	case b.Policy.Kind == Open:
		return algo.Decision{Allowed: true, Granted: r.N, Limit: r.Limit.Burst}, true
	case b.Policy.Kind == Share && known:
		return b.share.decide(r.ID, r.N, b.Policy.part(r.Limit)), true
	}
	return algo.Decision{}, false
}

// DecideAll is Decide for n requests of a combination. ids are those of its parts.
func (b *Breakers) DecideAll(c *algo.Combination, ids []ID, n int64) (algo.Decision, bool) {
	switch b.Policy.Kind {
	case Open:
		d := algo.Decision{Allowed: true, Granted: n, Limit: c.Most()}
		for _, p := range c.Parts {
			d.Parts = append(d.Parts, algo.Decision{Allowed: true, Granted: n * p.Cost, Limit: p.Limit.Burst})
		}
		return d, true
	case Share:
		shares := make([]Request, len(c.Parts))
		for i, p := range c.Parts {
			shares[i] = Request{ids[i], n * p.Cost, b.Policy.part(p.Limit)}
		}
		granted, results := b.share.decideAll(shares)
		return c.Combine(n, results, granted && n > 0), true
	}
	return algo.Decision{}, false
}

// Shares returns how many keys the policy counts one by one.
func (b *Breakers) Shares() int {
	b.share.mu.Lock()
	defer b.share.mu.Unlock()
	return len(b.share.keys)
}

// part returns this process's part of a limit.
func (p Policy) part(limit algo.Limit) algo.Limit {
	per := limit.Per * time.Duration(p.Share)
	if per/time.Duration(p.Share) != limit.Per || per > algo.MaxBurstTime {
		per = algo.MaxBurstTime // nearly nothing, once the burst is used
	}
	return algo.Limit{Rate: limit.Rate, Per: per, Burst: max(1, limit.Burst/p.Share)}
}
