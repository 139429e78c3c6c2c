package client

import (
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// Clock reads the time of a wheel as the time since an instant, its origin, which has a third of the size of a
// time.Time. It is safe for concurrent use.
type Clock struct {
	wheel  *wheel.Wheel
	origin time.Time
}

// NewClock returns a Clock whose origin is now.
func NewClock(w *wheel.Wheel) Clock { return Clock{w, w.Now()} }

// Now returns the time since the origin.
func (c Clock) Now() time.Duration { return c.At(c.wheel.Now()) }

// At returns the time from the origin to t.
func (c Clock) At(t time.Time) time.Duration { return t.Sub(c.origin) }

// Since returns the time since an instant, which is given as the time since the origin.
func (c Clock) Since(at time.Duration) time.Duration { return c.Now() - at }

// Time returns the instant of a time since the origin.
func (c Clock) Time(at time.Duration) time.Time { return c.origin.Add(at) }
