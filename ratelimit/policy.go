package ratelimit

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"

	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Policy determines the decisions while Redis is down. The zero Policy is FailClosed. A Policy decides only in
// outages: a refusal of this client by Redis is ErrMisconfigured under every policy.
type Policy struct {
	kind  policyKind
	share int64
}

type policyKind uint8

const (
	failClosed policyKind = iota
	failOpen
	shareLocally
)

// FailClosed fails calls with ErrUnavailable. Waits continue until Redis is back or their context ends.
func FailClosed() Policy { return Policy{} }

// FailOpen grants every request, except those that the call itself refuses: a Limiter and an All still refuse a
// request above the burst.
func FailOpen() Policy { return Policy{kind: failOpen} }

// LocalShare grants one n-th of the limit in each process, from memory; n, 1 or more, is the number of
// processes. The burst of the share is rounded down but at least 1; a request for more is denied. The share
// counts as GCRA does. A StoredLimiter fails closed while this process does not know its limit: it learns the
// limit from decisions of Redis, and forgets it a minute after the last decision, but not during an outage.
//
// A process counts up to 65536 keys one by one. Further keys share 256 counts, so together they get less, never
// more. A share does not begin again with each outage: permits that were granted from it return at the rate of
// the share, whether Redis is up or down.
func LocalShare(n int64) Policy { return Policy{kind: shareLocally, share: n} }

// part returns this process's part of a limit.
func (p Policy) part(limit algo.Limit) algo.Limit {
	per := limit.Per * time.Duration(p.share)
	if per/time.Duration(p.share) != limit.Per || per > algo.MaxBurstTime {
		per = algo.MaxBurstTime // nearly nothing, once the burst is used
	}
	return algo.Limit{Rate: limit.Rate, Per: per, Burst: max(1, limit.Burst/p.share)}
}

const (
	maxShares      = 1 << 16
	overflowShares = 1 << 8
	sweepEvery     = time.Minute
)

// localShare counts for the policy LocalShare, by the wheel's clock. A key is dropped when its whole share is
// available again, not when Redis is back. Memory is bounded: if too many keys have used permits, later keys
// share counts at random, so that together they get less, never more.
type localShare struct {
	wheel *wheel.Wheel
	began time.Time
	seed  maphash.Seed

	mu       sync.Mutex
	keys     map[stateID]algo.GCRATime
	overflow []int64     // us, rounded up
	sweepAt  int64       // us: no key can be dropped before
	timer    wheel.Timer // calls tidy, if armed
	armed    bool
	stopped  bool
}

func (l *localShare) init(w *wheel.Wheel) {
	l.wheel, l.began, l.seed = w, w.Now(), maphash.MakeSeed()
}

// armLocked schedules tidy. On a stopped wheel decisions sweep when there are too many keys.
func (l *localShare) armLocked() {
	if !l.stopped && !l.armed {
		var err error
		l.timer, err = wheelentry.AfterFunc(l.wheel, sweepEvery, l.tidy)
		l.armed = err == nil
	}
}

// tidy drops the keys whose whole share is there again.
func (l *localShare) tidy(error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed = false
	l.sweep(l.now())
	if len(l.keys) == 0 {
		l.keys = nil
		return
	}
	l.armLocked()
}

// stop ends the sweeps.
func (l *localShare) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	l.timer.Stop()
}

// now returns the time in µs.
func (l *localShare) now() int64 { return l.wheel.Now().Sub(l.began).Microseconds() }

// share is a request to one key: n permits of a part of its limit.
type share struct {
	id   stateID
	n    int64
	part algo.Limit
}

// decide decides by a part of a limit.
func (l *localShare) decide(id stateID, n int64, part algo.Limit) algo.Decision {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.countLocked(id, part)
	r := c.decide(n)
	l.chargeLocked(&c, r)
	return r
}

// decideAll decides by parts of several limits, all or none.
func (l *localShare) decideAll(shares []share) (all bool, results []algo.Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all = true
	counts := make([]shareCount, len(shares))
	for i, s := range shares {
		counts[i] = l.countLocked(s.id, s.part)
		results = append(results, counts[i].decide(s.n))
		all = all && results[i].Allowed
	}
	for i := range counts {
		if all {
			l.chargeLocked(&counts[i], results[i])
		} else {
			results[i] = counts[i].result(counts[i].tat)
			results[i].RetryAfter = counts[i].p.Delay(counts[i].tat, counts[i].now, shares[i].n)
			results[i].Allowed = results[i].RetryAfter == 0
		}
	}
	return all, results
}

// shareCount is the number of permits that a key has used of its part.
type shareCount struct {
	id     stateID
	p      algo.GCRAParams
	limit  algo.Limit
	now    int64
	tat    algo.GCRATime
	shared *int64 // us, rounded up, if the key has no count of its own
}

func (l *localShare) countLocked(id stateID, part algo.Limit) shareCount {
	id.options.limit = Limit{} // what was used under one limit of a key counts as time under the others, as in Redis
	c := shareCount{id: id, p: algo.NewGCRAParams(part), limit: part, now: l.now()}
	var known bool
	c.tat, known = l.keys[id]
	if !known && len(l.keys) >= maxShares && !l.sweep(c.now) {
		if l.overflow == nil {
			l.overflow = make([]int64, overflowShares)
		}
		c.shared = &l.overflow[maphash.Comparable(l.seed, id)%overflowShares]
		c.tat = algo.GCRATime{Micros: *c.shared}
	}
	return c
}

func (c *shareCount) decide(n int64) algo.Decision {
	tat, ok := c.p.Take(c.tat, c.now, n)
	r := c.result(tat)
	if ok {
		r.Allowed, r.Granted = n > 0 || r.Remaining > 0, n
	} else {
		r.RetryAfter = c.p.Delay(tat, c.now, n)
	}
	return r
}

func (c *shareCount) result(tat algo.GCRATime) algo.Decision {
	return algo.Decision{Limit: c.limit.Burst, Remaining: c.p.Remaining(tat, c.now), ResetAfter: c.p.Reset(tat, c.now)}
}

// chargeLocked records a grant. If two limits share a count, each adds to it.
func (l *localShare) chargeLocked(c *shareCount, r algo.Decision) {
	cost := c.p.Cost(r.Granted)
	switch {
	case r.Granted == 0:
	case c.shared != nil:
		*c.shared = max(*c.shared, c.now) + cost.RoundUp()
	default:
		from := c.tat
		if from.Micros < c.now {
			from = algo.GCRATime{Micros: c.now}
		}
		if l.keys == nil {
			l.keys = map[stateID]algo.GCRATime{}
		}
		l.armLocked()
		l.keys[c.id] = c.p.Add(from, cost)
	}
}

// sweep drops the keys whose whole burst is back, and reports whether there were any. It does not search again
// before there can be some.
func (l *localShare) sweep(now int64) bool {
	const atMostEvery = 100_000 // us
	if now < l.sweepAt {
		return false
	}
	l.sweepAt = now + atMostEvery
	for id, tat := range l.keys {
		if tat.Micros < now {
			delete(l.keys, id)
		}
	}
	return len(l.keys) < maxShares
}
