package keys

import (
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
)

// charged is the prepaid permits of one key, in the order in which they can be used.
type charged struct {
	algorithm algo.Algorithm
	spans     []algo.Span
	N         int64
	added     int64 // permits that were ever charged
	lost      int64 // permits that ever expired unused
	// charges to give back: entries of a log that no waiter can use, and what could not be given back
	back []algo.Span
}

// whole reports whether a span serves exactly one request, which uses all of it.
func (c *charged) whole() bool { return c.algorithm.Traits().Entries }

// atOnce reports whether permits are charged only when they can be used.
func (c *charged) atOnce() bool { return c.algorithm.Traits().AtOnce }

func (c *charged) Add(spans ...algo.Span) {
	for _, s := range spans {
		s.Added = c.added
		c.added += s.N
		c.insert(s)
	}
}

// insert puts a span where its permits can be used in order.
func (c *charged) insert(s algo.Span) {
	c.N += s.N
	at := len(c.spans)
	for c.reserves() && at > 0 && s.Start.Less(c.spans[at-1].Start) {
		at--
	}
	c.spans = slices.Insert(c.spans, at, s)
}

// dropUntil drops the permits that were charged before added exceeded the given value.
func (c *charged) dropUntil(added int64) {
	c.drop(func(s *algo.Span) bool { return s.Added < added })
}

// drop removes permits that nobody may use any more. Entries of a log are to be given back.
func (c *charged) drop(which func(*algo.Span) bool) {
	c.spans = slices.DeleteFunc(c.spans, func(s algo.Span) bool {
		if !which(&s) {
			return false
		}
		if c.N -= s.N; s.Entry != "" {
			c.back = append(c.back, s)
		}
		return true
	})
}

// adopt is called with the period that the state has: permits that were charged in another one are void.
func (c *charged) adopt(period int64) {
	if c.reserves() {
		c.drop(func(s *algo.Span) bool { return s.Period != period })
	}
}

// reserves reports whether permits are charged long before they can be used.
func (c *charged) reserves() bool { return c.algorithm.Traits().Reserves }

// ready drops the permits that are too late for a request for n permits that has waited since then. It returns
// when the request can have its permits, or how many are missing.
func (c *charged) ready(n int64, since time.Duration) (at time.Duration, missing int64) {
	for len(c.spans) > 0 {
		f := c.algorithm.Fit(c.spans, n, since)
		if f.Drop == 0 {
			return f.At, f.Missing
		}
		c.lost += f.Drop
		c.remove(f.Drop, true)
	}
	return 0, n
}

// usable returns when the last permit of a span can be used.
func (c *charged) usable(s algo.Span) time.Duration {
	unit := s.N
	if !c.whole() {
		unit = 1
		c.algorithm.Skip(&s, s.N-unit)
	}
	return c.algorithm.Fit([]algo.Span{s}, unit, -Never/2).At
}

// Use takes n permits from the front.
func (c *charged) Use(n int64) { c.remove(n, false) }

func (c *charged) remove(n int64, unused bool) {
	c.N -= n
	gone := 0
	for n > 0 {
		s := &c.spans[gone]
		if n < s.N {
			c.algorithm.Skip(s, n)
			break
		}
		if n -= s.N; unused && s.Entry != "" {
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
	return slices.IndexFunc(c.spans, func(s algo.Span) bool { return s.Unit == n })
}

// placeAt returns when the first place of a span can be used, and when it is too late for that.
func (c *charged) placeAt(s *algo.Span) (at, late time.Duration) {
	at = c.algorithm.Fit([]algo.Span{*s}, s.Unit, -Never/2).At
	return at, max(at, s.At.Got) + latePlaces
}

// leavePlace takes the first place of a span out. If it is unused, it is to be given back.
func (c *charged) leavePlace(i int, unused bool) {
	s := &c.spans[i]
	part := *s
	if part.N = s.Unit; unused {
		c.back = append(c.back, part)
	}
	c.N -= part.N
	if c.algorithm.Skip(s, part.N); s.N == 0 {
		c.spans = slices.Delete(c.spans, i, i+1)
	}
}

// trim gives back the last places that no waiter takes, as far as they cannot be used before an instant. surplus is how
// many there are for a number of permits. It reports whether there were any.
func (c *charged) trim(surplus map[int64]int64, before time.Duration) (some bool) {
	for i := len(c.spans) - 1; i >= 0; i-- {
		s := &c.spans[i]
		for surplus[s.Unit] > 0 && s.N > 0 {
			part := *s
			c.algorithm.Skip(&part, s.N-s.Unit)
			if at, _ := c.placeAt(&part); at < before {
				return some
			}
			s.N -= s.Unit
			c.N -= s.Unit
			surplus[s.Unit]--
			c.back, some = append(c.back, part), true
		}
		if s.N == 0 {
			c.spans = slices.Delete(c.spans, i, i+1)
		}
	}
	return some
}

// keep returns how long permits stay when the line is empty, for later waiters.
func (c *charged) keep() time.Duration { return c.algorithm.Traits().Keep }

// TakeAll removes and returns all unused permits, including charges that must be given back.
func (c *charged) TakeAll() (spans []algo.Span) {
	spans = append(c.back, c.spans...)
	c.spans, c.back, c.N = nil, nil, 0
	return spans
}
