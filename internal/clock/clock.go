// Package clock measures elapsed time that counts suspend and ignores steps of the wall clock.
package clock

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Reading is one look at the three clocks of a machine.
type Reading struct {
	// Now has the wall clock, which is set and counts suspend, and the monotonic clock, which is not set and, on
	// most systems, stops during suspend.
	Now time.Time

	// Boot is the boot clock, which is not set and counts suspend. HasBoot is false where there is none.
	Boot    time.Duration
	HasBoot bool
}

// maxSkew bounds how far the clocks of one Reading are apart.
const maxSkew = time.Millisecond

// Reader returns a function that reads the three clocks, of which now gives the first two. It leaves the boot
// clock alone if now does not give the time of the machine: if it comes from a synctest bubble or a fake clock.
func Reader(now func() time.Time) func() Reading {
	withoutBoot := func() Reading { return Reading{Now: now()} }
	if before, t, after := time.Now(), now(), time.Now(); !monotonic(t) || t.Before(before) || t.After(after) {
		return withoutBoot
	}
	if _, ok := bootTime(); !ok {
		return withoutBoot
	}
	return func() (r Reading) {
		for range 10 { // unless the process is stopped in between each time
			before := now()
			r.Boot, r.HasBoot = bootTime()
			r.Now = now()
			if r.Now.Sub(before) < maxSkew {
				break
			}
		}
		return r
	}
}

// monotonic reports whether t has a monotonic reading. The time of a synctest bubble has none.
func monotonic(t time.Time) bool { return t != t.Round(0) }

const (
	// resolution is by how much the wall clock has to move against the monotonic clock to be noticed.
	resolution = 10 * time.Millisecond

	// maxSuspends is how many suspends are remembered one by one.
	maxSuspends = 64
)

// Clock is a time line that counts suspend. The monotonic clock measures it. Where the wall clock has moved
// against the monotonic clock, either the machine was suspended or the wall clock was set, and the boot clock
// decides which. Without a boot clock, every move ahead counts as suspend.
//
// A Clock is safe for concurrent use.
type Clock struct {
	read   func() Reading
	origin Reading

	offset   atomic.Int64              // of the wall clock against the monotonic clock, when it was last noticed
	suspends atomic.Pointer[[]suspend] // in order; never changed in place

	mu sync.Mutex // held to write offset and suspends
}

// suspend is a suspend that was noticed.
type suspend struct {
	end    time.Time     // the first reading after it
	offset time.Duration // of the wall clock at that reading
	total  time.Duration // of this suspend and all earlier ones
}

// New returns a Clock that reads the clocks of the machine by read.
func New(read func() Reading) *Clock {
	c := &Clock{read: read, origin: read()}
	c.suspends.Store(new([]suspend))
	return c
}

// At places t on the time line: at the time since the Clock was made. Notice must have been called after t. A time
// that has no monotonic reading, although the Clock has, is placed by the wall clock as it is now.
func (c *Clock) At(t time.Time) time.Duration {
	at := t.Sub(c.origin.Now)
	if monotonic(t) || !monotonic(c.origin.Now) {
		return at + c.suspendedAt(t)
	}
	return at - time.Duration(c.offset.Load()) + total(*c.suspends.Load())
}

// Since returns the time from since to now, suspends included.
func (c *Clock) Since(since, now time.Time) time.Duration { return c.At(now) - c.At(since) }

// Ahead returns by how much the wall clock alone was set ahead from since to now.
func (c *Clock) Ahead(since, now time.Time) time.Duration {
	return now.Round(0).Sub(since.Round(0)) - c.Since(since, now)
}

// Notice finds out whether the machine was suspended or the wall clock set, and returns true if so. It is to be
// called with each time that is read. It reads the boot clock only if the wall clock has moved.
func (c *Clock) Notice(now time.Time) bool {
	if near(c.offsetAt(now), time.Duration(c.offset.Load())) {
		return false
	}
	// A bubble has no part in the time line of a Clock that was made outside.
	return monotonic(now) == monotonic(c.origin.Now) && c.notice()
}

func (c *Clock) notice() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.read()
	offset := c.offsetAt(r.Now)
	moved := offset - time.Duration(c.offset.Load())
	if near(moved, 0) {
		return false // another caller has noticed it
	}
	suspends := *c.suspends.Load()
	earlier, suspended := total(suspends), moved
	if r.HasBoot {
		suspended = (r.Boot - c.origin.Boot) - r.Now.Sub(c.origin.Now) - earlier
	}
	if suspended >= resolution {
		// Of an instant before the oldest that is kept, too many suspends are counted rather than too few.
		suspends = slices.Clone(suspends[max(0, len(suspends)+1-maxSuspends):])
		suspends = append(suspends, suspend{r.Now, offset, earlier + suspended})
		c.suspends.Store(&suspends)
	}
	c.offset.Store(int64(offset))
	return true
}

// suspendedAt returns for how long the machine had been suspended at t. A suspend ended before t if t is later
// than the reading that noticed it, or if the wall clock had moved already at t. In doubt it ended after t, so
// that the time since t is not taken for too short.
func (c *Clock) suspendedAt(t time.Time) time.Duration {
	for _, s := range slices.Backward(*c.suspends.Load()) {
		if t.After(s.end) || near(c.offsetAt(t), s.offset) {
			return s.total
		}
	}
	return 0
}

// offsetAt returns by how much the wall clock had moved against the monotonic clock at t.
func (c *Clock) offsetAt(t time.Time) time.Duration {
	return t.Round(0).Sub(c.origin.Now.Round(0)) - t.Sub(c.origin.Now)
}

// total returns for how long the machine was suspended in all.
func total(suspends []suspend) time.Duration {
	if len(suspends) == 0 {
		return 0
	}
	return suspends[len(suspends)-1].total
}

func near(a, b time.Duration) bool { return (a - b).Abs() < resolution }
