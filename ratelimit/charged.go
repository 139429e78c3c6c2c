package ratelimit

import (
	"slices"
	"time"
)

// reading is one answer of a server's clock: its time lies between the instants at which a script was sent
// and its reply came, by the Client's clock, which counts from when the Client was made.
type reading struct {
	server    int64 // us
	sent, got time.Duration
}

// notBefore is an instant by which the server's clock surely shows us; notAfter one by which it surely did
// not go beyond.
func (r reading) notBefore(us int64) time.Duration { return r.got + micros(us-r.server) }
func (r reading) notAfter(us int64) time.Duration  { return r.sent + micros(us-r.server) }

// span is permits that were charged to a key and are not used yet, in one piece. Each of them has a time in
// which the limit allows it to be used: not before its place in the limit's own order has come, and not after
// another burst could come on top of it. A request uses permits as if at the first instant at which all of
// them can be used and it is there. So whatever becomes of the waiters for which permits were charged, no
// stretch of time holds more than the limit.
type span struct {
	n int64

	// Of windows and logs: when all of them can be used, by the Client's clock.
	from, until time.Duration

	// Of GCRA: the permit at place i is worth the i-th stretch of the server's time from start on. It can be
	// used until that begins, and from a whole burst before it ends.
	start gcraTime
	at    reading

	entry string // of a log: it is used or given back as a whole
}

// fitting says how a request is served from the front of what is charged.
type fitting struct {
	drop    int64         // permits at the front whose waiters have gone; then the rest says nothing
	missing int64         // permits that have to be charged before
	at      time.Duration // if none are missing: when it can have them
}

// charged is permits of one key, in the order in which they can be used.
type charged struct {
	algorithm algorithm
	spans     []span
	n         int64
	added     int64  // permits that were ever charged
	lost      int64  // that expired unused, ever
	back      []span // entries of a log that no waiter can use: they are to be given back
}

// whole reports whether a span is for one request that asks for all of it.
func (c *charged) whole() bool {
	_, log := c.algorithm.(*slidingLog)
	return log
}

// atOnce reports whether permits are charged only when they can be used.
func (c *charged) atOnce() bool {
	_, all := c.algorithm.(*combination)
	return all
}

func (c *charged) add(spans ...span) {
	for _, s := range spans {
		c.spans = append(c.spans, s)
		c.n += s.n
		c.added += s.n
	}
}

// dropUntil drops the remaining permits that were charged when added had the given value.
func (c *charged) dropUntil(added int64) {
	if remaining := c.n - (c.added - added); remaining > 0 {
		c.remove(remaining, true)
	}
}

// ready drops what a request for n permits that has waited since then comes too late for, and tells when it
// can have them, or how many are missing.
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

// usable is when the last permit of a span can be used.
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

// keep is for how long permits stay when the line is empty, for waiters to come. Those of a window cannot be
// given back, so they stay until it ends, or for as long as a denial is trusted.
func (c *charged) keep() time.Duration {
	if _, ok := c.algorithm.(*window); ok {
		return maxDenyFor
	}
	return lookPeriod
}

// takeAll returns everything that is not used, the entries to be given back included, and forgets it.
func (c *charged) takeAll() (spans []span) {
	spans = append(c.back, c.spans...)
	c.spans, c.back, c.n = nil, nil, 0
	return spans
}
