package keys

import (
	"time"

	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
)

// Places are permits that a line has reserved: long before they can be used, and given back if no waiter needs them. A
// waiter has the first place for as many permits as it asks for that no earlier waiter has. A line asks at once for a
// waiter if it has no place, so that the waiters of all processes are served as they come, and then only while its last
// place is near (nearPlaces): so a process that dies, and one with many waiters, take little from the others.

// servePlaces serves the waiters whose places can be used, each by one for as many permits, and returns when the next
// can.
func (l *Line) servePlaces(now time.Duration) (due time.Duration) {
	c := &l.Charged
	due = Never
	for i := 0; i < len(c.spans); {
		s := &c.spans[i]
		at, late := c.placeAt(s)
		w := l.waiterFor(s.Unit)
		switch {
		case now > late:
			c.leavePlace(i, true)
			c.lost++
		case w == nil && at <= now && l.split(i, now):
		case w == nil:
			if at <= now {
				at = late + 1 // then it is given back
			}
			due = min(due, at)
			i++
		case at > now:
			due = min(due, at)
			i++
		case w.Since > s.At.NotAfter(s.Start.Micros): // the limit has granted others since
			c.leavePlace(i, false)
			c.lost++
		default:
			if l.ahead.denied = at-s.At.Got > MaxReserve/2; l.ahead.denied { // others that found no room get a chance
				l.lookedAt = now
			}
			c.leavePlace(i, false)
			l.used += w.N
			l.finish(w, now, nil)
		}
	}
	return due
}

// split serves the first waiter for fewer permits from the first place of a span, and keeps the rest as a place. It
// reports whether there is one.
func (l *Line) split(i int, now time.Duration) bool {
	c := &l.Charged
	rest := c.spans[i]
	most := int64(0)
	for n := range l.waits {
		if n < rest.Unit {
			most = max(most, n)
		}
	}
	w := l.waiterFor(most)
	if w == nil || w.Since > rest.At.NotAfter(rest.Start.Micros) {
		return false
	}
	c.leavePlace(i, false)
	rest.N = rest.Unit
	c.algorithm.Skip(&rest, w.N)
	rest.Unit = rest.N
	c.insert(rest)
	l.used += w.N
	l.ahead.denied, l.ahead.left = false, true // it may have a place of its own
	l.finish(w, now, nil)
	return true
}

// waiterFor returns the first waiter for n permits, or nil.
func (l *Line) waiterFor(n int64) *Waiter {
	if l.waits[n] == 0 {
		return nil
	}
	w := l.first
	for w.N != n {
		w = w.next
	}
	return w
}

// reserveAt is lookAt for permits that can be reserved: at once for a waiter if there are no places, and else when
// these are nearly used up. Once a second a look tells whether others have given earlier ones back.
func (l *Line) reserveAt(now time.Duration) time.Duration {
	c := &l.Charged
	if l.ahead.left {
		l.ahead.left = false
		if c.trim(l.surplus(), now+horizon) {
			l.ahead.trimmed = min(l.ahead.trimmed, now)
		}
	}
	at := algo.Plus(l.lookedAt, lookEvery)
	if l.changed || l.ahead.earlier {
		at = algo.Plus(l.lookedAt, lookPeriod)
	}
	for range l.uncovered {
		switch held := len(c.spans); {
		case held == 0 && !l.ahead.denied:
			at = now
		case held == 0:
			at = algo.Plus(l.lookedAt, l.ahead.pause)
		case held > 0 && !l.ahead.denied:
			lead := 2*l.took + 3*time.Millisecond
			at = min(at, max(c.usable(c.spans[held-1])-lead, l.paidUntil-(earlyLooks-1)*lookPeriod))
		}
		break
	}
	if len(c.back) > 0 {
		at = min(at, max(algo.Plus(l.ahead.trimmed, lookPeriod), l.backAt))
	}
	return max(at, l.retryAt)
}

// surplus returns how many places for a number of permits no waiter takes.
func (l *Line) surplus() map[int64]int64 {
	places, all := l.places()
	for w := l.first; w != nil && all > 0; w = w.next {
		if places[w.N] > 0 {
			places[w.N]--
			all--
		}
	}
	return places
}

// places returns how many places there are for a number of permits, and for all.
func (l *Line) places() (of map[int64]int64, all int64) {
	of = make(map[int64]int64, 1)
	for _, s := range l.Charged.spans {
		of[s.Unit] += s.N / s.Unit
		all += s.N / s.Unit
	}
	return of, all
}

// withoutPlace is uncovered for permits that are reserved: each waiter takes the first place for as many permits.
func (l *Line) withoutPlace(yield func(*Waiter, int64) bool) {
	var places map[int64]int64
	if len(l.Charged.spans) > 0 {
		places, _ = l.places()
	}
	for w := l.first; w != nil; w = w.next {
		if places[w.N] > 0 {
			places[w.N]--
		} else if !yield(w, w.N) {
			return
		}
	}
}

// request returns the request for what is missing for a waiter.
func (l *Line) request(w *Waiter, missing int64, now time.Duration) algo.Run {
	r := algo.Run{N: missing, Count: 1}
	if l.Charged.reserves() {
		r.Within = MaxReserve
		if w.Deadline-now < MaxReserve {
			r.Within, r.Alone = max(0, w.Deadline-now), true
		}
	}
	return r
}

// comingWithin returns how early permits are charged for waiters yet to come.
func (l *Line) comingWithin() time.Duration {
	if l.Charged.reserves() {
		return min(horizon+2*l.took, maxHorizon)
	}
	return 0
}

// renew gives the places back, to reserve them anew in the same script, if there were permits before, unless the first
// place is near.
func (l *Line) renew(now time.Duration) {
	c := &l.Charged
	l.ahead.seeks = l.changed || now-l.ahead.renewed >= lookEvery
	if !l.ahead.earlier || len(c.spans) > maxRenewed {
		return
	}
	l.ahead.earlier, l.ahead.seeks, l.ahead.renewed = false, false, now
	if len(c.spans) > 0 && c.usable(c.spans[0]) > now+horizon+2*l.took {
		c.back = append(c.back, c.spans...)
		c.spans, c.N = nil, 0
	}
}
