package sim

import (
	"sync"
	"time"
	"unsafe"
)

// clock is the clock of a process that may stand still, or whose wall clock may step. The wheel of such a process
// reads it; that of any other reads the system's.
type clock struct {
	link  *link
	start time.Time // of the monotonic clock

	mu      sync.Mutex
	stepped time.Duration // by which the wall clock was set
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	return twoClocks(now.Add(c.stepped), now.Sub(c.start))
}

func (c *clock) step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stepped += d
}

// After delivers late if the process stands still when the time has passed.
func (c *clock) After(d time.Duration) <-chan time.Time {
	at := make(chan time.Time, 1)
	var look func()
	look = func() {
		if left := c.link.standsStill(); left > 0 {
			time.AfterFunc(left, look)
			return
		}
		at <- c.Now()
	}
	time.AfterFunc(d, look)
	return at
}

// standsStill returns for how long the process does not run yet.
func (l *link) standsStill() time.Duration {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	return time.Until(l.frozen)
}

// twoClocks returns a time as time.Now returns it, with a reading of the wall clock and one of the monotonic
// clock. In a bubble, time.Now has the first alone, and package time has no function to make the second.
func twoClocks(wall time.Time, monotonic time.Duration) time.Time {
	var t struct { // a time.Time
		wall uint64 // a bit, 33 bits of seconds since 1885, 30 bits of nanoseconds
		ext  int64  // the monotonic reading, if the bit is set
		loc  *time.Location
	}
	t.wall = 1<<63 | uint64(wall.Unix()-year1885)<<30 | uint64(wall.Nanosecond())
	t.ext, t.loc = int64(monotonic), time.Local
	return *(*time.Time)(unsafe.Pointer(&t)) //nolint:gosec // the test compares it with package time
}

// year1885 is the first second of 1885, since the Unix epoch.
var year1885 = time.Date(1885, time.January, 1, 0, 0, 0, 0, time.UTC).Unix()
