package ratelimit

import (
	"hash/maphash"
	"sync"
	"time"
)

// Policy says what is decided while Redis is down. The zero Policy is FailClosed. It decides outages only:
// what Redis refuses because of this client is ErrMisconfigured under every policy.
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

// FailClosed denies with ErrUnavailable; waits go on until Redis is back or their context ends.
func FailClosed() Policy { return Policy{} }

// FailOpen grants everything.
func FailOpen() Policy { return Policy{kind: failOpen} }

// LocalShare grants one n-th of the limit in each process, from its own memory; n, 1 or more, is the number
// of processes. Of a burst smaller than n each process grants 1. A Limiter whose limit this process has not
// seen yet fails closed. A process counts up to 65536 keys one by one; further keys share 256 counts, so
// together they get less, never more.
func LocalShare(n int64) Policy { return Policy{kind: shareLocally, share: n} }

// part is this process's part of a limit.
func (p Policy) part(limit Limit) Limit {
	per := limit.Per * time.Duration(p.share)
	if per/time.Duration(p.share) != limit.Per || per > maxBurstTime {
		per = maxBurstTime // as good as nothing, once the burst is used
	}
	return Limit{Rate: limit.Rate, Per: per, Burst: max(1, limit.Burst/p.share)}
}

const (
	maxShares      = 1 << 16
	overflowShares = 1 << 8
)

// localShare counts by the policy LocalShare, by the process's own clock. Its memory is bounded: when there
// are too many keys that have used something, those that come later share buckets, by chance, so that
// together they get less, never more.
type localShare struct {
	mu       sync.Mutex
	began    time.Time
	seed     maphash.Seed
	keys     map[stateID]gcraTime
	overflow []int64 // us, rounded up
	sweepAt  int64   // us: not before, no key can be forgotten
}

// forget drops everything.
func (l *localShare) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keys, l.overflow = nil, nil
}

// decide decides by a part of a limit.
func (l *localShare) decide(id stateID, n int64, part Limit) Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keys == nil {
		l.keys, l.began, l.seed, l.sweepAt = map[stateID]gcraTime{}, time.Now(), maphash.MakeSeed(), 0
	}
	p, now := newGCRAParams(part), time.Since(l.began).Microseconds()
	tat, known := l.keys[id]
	var shared *int64
	if !known && len(l.keys) >= maxShares && !l.sweep(now) {
		if l.overflow == nil {
			l.overflow = make([]int64, overflowShares)
		}
		shared = &l.overflow[maphash.Comparable(l.seed, id)%overflowShares]
		tat = gcraTime{us: *shared}
	}
	tat, ok := p.take(tat, now, n)
	switch {
	case !ok || n == 0:
	case shared != nil:
		*shared = tat.roundUp()
	default:
		l.keys[id] = tat
	}
	r := Result{
		Limit: part.Burst, Remaining: p.remaining(tat, now), ResetAfter: p.reset(tat, now), Source: SourceDegraded,
	}
	if ok {
		r.Allowed, r.Granted = n > 0 || r.Remaining > 0, n
	} else {
		r.RetryAfter = p.delay(tat, now, n)
	}
	return r
}

// sweep forgets the keys whose whole burst is back, and reports whether there were any. It does not look
// again before some may be.
func (l *localShare) sweep(now int64) bool {
	const atMostEvery = 100_000 // us
	if now < l.sweepAt {
		return false
	}
	l.sweepAt = now + atMostEvery
	for id, tat := range l.keys {
		if tat.us < now {
			delete(l.keys, id)
		}
	}
	return len(l.keys) < maxShares
}
