package ratelimit

import (
	"math"
	"slices"
	"sort"
	"time"
)

// localLog is a sliding log: it enters n permits at a time only if they and those of the interval before,
// which begins just after that time less the interval, are not more than the rate. So no interval holds more,
// wherever it begins. Entries may lie ahead: they count from now on. It is what rate_log.lua does, by the
// times it is told, which must not go back.
type localLog struct {
	rate     int64
	interval time.Duration // at most maxBurstTime, so that sums do not overflow
	entries  []logged      // by time; those before head have left
	head     int
	used     int64 // by the others
	last     uint64
}

// stamp is what an entry is found by.
type stamp struct {
	at time.Duration
	id uint64
}

type logged struct {
	stamp
	n int64
}

// set changes the limit. What was entered stays.
func (m *localLog) set(rate int64, interval time.Duration) {
	m.rate, m.interval = rate, min(interval, maxBurstTime)
}

func (m *localLog) limit() Limit { return Limit{Rate: m.rate, Per: m.interval, Burst: m.rate} }

// leave lets go the entries that are as old as the interval.
func (m *localLog) leave(now time.Duration) {
	for m.head < len(m.entries) && m.entries[m.head].at <= now-m.interval {
		m.used -= m.entries[m.head].n
		m.head++
	}
	switch {
	case m.head == len(m.entries) && m.head > 1024:
		m.entries, m.head = nil, 0 // a burst is over
	case m.head > len(m.entries)/2:
		m.entries, m.head = slices.Delete(m.entries, 0, m.head), 0
	}
}

// left is how many permits can be entered; it is below 0 if the rate was lowered.
func (m *localLog) left(now time.Duration) int64 {
	m.leave(now)
	return m.rate - m.used
}

// take enters n permits if they are left.
func (m *localLog) take(now time.Duration, n int64) (stamp, bool) {
	if n > m.left(now) {
		return stamp{}, false
	}
	return m.enter(now, n), true
}

func (m *localLog) enter(at time.Duration, n int64) stamp {
	m.last++
	i := len(m.entries)
	for i > m.head && m.entries[i-1].at > at {
		i--
	}
	m.entries = slices.Insert(m.entries, i, logged{stamp{at, m.last}, n})
	m.used += n
	return m.entries[i].stamp
}

// from is the first time from now on at which n permits, at most the rate, are left if nothing else is
// entered.
func (m *localLog) from(now time.Duration, n int64) time.Duration {
	at, left := now, m.left(now)
	for i := m.head; left < n; i++ {
		left += m.entries[i].n
		at = m.entries[i].at + m.interval
	}
	return at
}

// newest is the time of the last entry, or before all times.
func (m *localLog) newest() time.Duration {
	if len(m.entries) == m.head {
		return math.MinInt64
	}
	return m.entries[len(m.entries)-1].at
}

// reserve enters n permits, at most the rate: now if they are left, or at the first time from then on that
// keeps the limit and is not before the newest entry, if that is at most so far ahead.
func (m *localLog) reserve(now time.Duration, n int64, ahead time.Duration) (stamp, bool) {
	at := now
	if n > m.left(now) {
		at = max(m.from(now, n), m.newest())
	}
	if at-now > ahead {
		return stamp{}, false
	}
	return m.enter(at, n), true
}

// giveBack removes an entry, and reports whether it was still there.
func (m *localLog) giveBack(now time.Duration, s stamp) bool {
	m.leave(now)
	rest := m.entries[m.head:]
	i := sort.Search(len(rest), func(i int) bool { return rest[i].at >= s.at })
	for ; i < len(rest) && rest[i].at == s.at; i++ {
		if rest[i].id == s.id {
			m.used -= rest[i].n
			m.entries = slices.Delete(m.entries, m.head+i, m.head+i+1)
			return true
		}
	}
	return false
}

// reset is how long after now the log is empty.
func (m *localLog) reset(now time.Duration) time.Duration {
	if m.leave(now); m.head == len(m.entries) {
		return 0
	}
	return m.newest() + m.interval - now
}

// wait is a lower bound of how long total permits take, however many they are.
func (m *localLog) wait(now time.Duration, total int64) time.Duration {
	rounds := (total - 1) / m.rate
	if rounds > int64(maxBurstTime/m.interval) {
		return maxBurstTime
	}
	longest := time.Duration(rounds) * m.interval
	if n := min(total, m.rate); n > m.left(now) {
		longest = max(longest, m.from(now, n)-now)
	}
	return longest
}
