package outage

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
	"github.com/cogwheel-go/cogwheel/wheel"
)

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
	keys     map[ID]algo.GCRATime
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

// Request is a request for n permits of the limit of a key.
type Request struct {
	ID    ID
	N     int64
	Limit algo.Limit
}

// decide decides by a part of a limit.
func (l *localShare) decide(id ID, n int64, part algo.Limit) algo.Decision {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.countLocked(id, part)
	r := c.decide(n)
	l.chargeLocked(&c, r)
	return r
}

// decideAll decides by parts of several limits, all or none.
func (l *localShare) decideAll(shares []Request) (all bool, results []algo.Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all = true
	counts := make([]shareCount, len(shares))
	for i, s := range shares {
		counts[i] = l.countLocked(s.ID, s.Limit)
		results = append(results, counts[i].decide(s.N))
		all = all && results[i].Allowed
	}
	for i := range counts {
		if all {
			l.chargeLocked(&counts[i], results[i])
		} else {
			results[i] = counts[i].result(counts[i].tat)
			results[i].RetryAfter = counts[i].p.Delay(counts[i].tat, counts[i].now, shares[i].N)
			results[i].Allowed = results[i].RetryAfter == 0
		}
	}
	return all, results
}

// shareCount is the number of permits that a key has used of its part.
type shareCount struct {
	id     ID
	p      algo.GCRAParams
	limit  algo.Limit
	now    int64
	tat    algo.GCRATime
	shared *int64 // us, rounded up, if the key has no count of its own
}

func (l *localShare) countLocked(id ID, part algo.Limit) shareCount {
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
			l.keys = map[ID]algo.GCRATime{}
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
