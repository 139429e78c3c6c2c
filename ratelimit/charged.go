package ratelimit

import (
	"slices"
	"time"
)

// charged is the prepaid permits of one key, in the order in which they can be used.
type charged struct {
	algorithm algorithm
	spans     []span
	n         int64
	added     int64  // permits that were ever charged
	lost      int64  // permits that ever expired unused
	back      []span // charges to give back: entries of a log that no waiter can use, and what could not be given back
}

// whole reports whether a span serves exactly one request, which uses all of it.
func (c *charged) whole() bool { return c.algorithm.traits().entries }

// atOnce reports whether permits are charged only when they can be used.
func (c *charged) atOnce() bool { return c.algorithm.traits().atOnce }

func (c *charged) add(spans ...span) {
	for _, s := range spans {
		s.added = c.added
		c.added += s.n
		c.insert(s)
	}
}

// insert puts a span where its permits can be used in order.
func (c *charged) insert(s span) {
	c.n += s.n
	at := len(c.spans)
	for c.reserves() && at > 0 && s.start.less(c.spans[at-1].start) {
		at--
	}
	c.spans = slices.Insert(c.spans, at, s)
}

// dropUntil drops the permits that were charged before added exceeded the given value.
func (c *charged) dropUntil(added int64) {
	c.drop(func(s *span) bool { return s.added < added })
}

// drop removes permits that nobody may use any more. Entries of a log are to be given back.
func (c *charged) drop(which func(*span) bool) {
	c.spans = slices.DeleteFunc(c.spans, func(s span) bool {
		if !which(&s) {
			return false
		}
		if c.n -= s.n; s.entry != "" {
			c.back = append(c.back, s)
		}
		return true
	})
}

// adopt is called with the period that the state has: permits that were charged in another one are void.
func (c *charged) adopt(period int64) {
	if c.reserves() {
		c.drop(func(s *span) bool { return s.period != period })
	}
}

// reserves reports whether permits are charged long before they can be used.
func (c *charged) reserves() bool { return c.algorithm.traits().reserves }

// ready drops the permits that are too late for a request for n permits that has waited since then. It returns
// when the request can have its permits, or how many are missing.
func (c *charged) ready(n int64, since time.Duration) (at time.Duration, missing int64) {
	for len(c.spans) > 0 {
		f := c.algorithm.fit(c.spans, n, since)
		if f.drop == 0 {
			return f.at, f.missing
		}
		c.lost += f.drop
		c.remove(f.drop, true)
	}
	return 0, n
}

// usable returns when the last permit of a span can be used.
func (c *charged) usable(s span) time.Duration {
	unit := s.n
	if !c.whole() {
		unit = 1
		c.algorithm.skip(&s, s.n-unit)
	}
	return c.algorithm.fit([]span{s}, unit, -never/2).at
}

// use takes n permits from the front.
func (c *charged) use(n int64) { c.remove(n, false) }

func (c *charged) remove(n int64, unused bool) {
	c.n -= n
	gone := 0
	for n > 0 {
		s := &c.spans[gone]
		if n < s.n {
			c.algorithm.skip(s, n)
			break
		}
		if n -= s.n; unused && s.entry != "" {
			c.back = append(c.back, *s)
		}
		gone++
	}
	if c.spans = slices.Delete(c.spans, 0, gone); len(c.spans) == 0 {
		c.spans = nil
	}
}

// place returns the number of the first span that has places for n permits, or -1.
func (c *charged) place(n int64) int {
	return slices.IndexFunc(c.spans, func(s span) bool { return s.unit == n })
}

// placeAt returns when the first place of a span can be used, and when it is too late for that.
func (c *charged) placeAt(s *span) (at, late time.Duration) {
	at = c.algorithm.fit([]span{*s}, s.unit, -never/2).at
	return at, max(at, s.at.got) + latePlaces
}

// leavePlace takes the first place of a span out. If it is unused, it is to be given back.
func (c *charged) leavePlace(i int, unused bool) {
	s := &c.spans[i]
	part := *s
	if part.n = s.unit; unused {
		c.back = append(c.back, part)
	}
	c.n -= part.n
	if c.algorithm.skip(s, part.n); s.n == 0 {
		c.spans = slices.Delete(c.spans, i, i+1)
	}
}

// trim gives back the last places that no waiter takes, as far as they cannot be used before an instant. surplus is how
// many there are for a number of permits. It reports whether there were any.
func (c *charged) trim(surplus map[int64]int64, before time.Duration) (some bool) {
	for i := len(c.spans) - 1; i >= 0; i-- {
		s := &c.spans[i]
		for surplus[s.unit] > 0 && s.n > 0 {
			part := *s
			c.algorithm.skip(&part, s.n-s.unit)
			if at, _ := c.placeAt(&part); at < before {
				return some
			}
			s.n -= s.unit
			c.n -= s.unit
			surplus[s.unit]--
			c.back, some = append(c.back, part), true
		}
		if s.n == 0 {
			c.spans = slices.Delete(c.spans, i, i+1)
		}
	}
	return some
}

// keep returns how long permits stay when the line is empty, for later waiters.
func (c *charged) keep() time.Duration { return c.algorithm.traits().keep }

// takeAll removes and returns all unused permits, including charges that must be given back.
func (c *charged) takeAll() (spans []span) {
	spans = append(c.back, c.spans...)
	c.spans, c.back, c.n = nil, nil, 0
	return spans
}
