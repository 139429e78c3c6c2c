// Package clocktest has clocks of a machine that tests can set, for tests in real time and in synctest bubbles.
package clocktest

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cogwheel-go/cogwheel/internal/clock"
)

// Clock has the three clocks of a machine. It is a wheel.Clock and safe for concurrent use. The zero value shows
// the time of the machine or bubble. Times read in a bubble have a monotonic reading.
type Clock struct {
	wall, boot atomic.Int64 // ahead of the monotonic clock
	reads      atomic.Int64
}

// Step sets the wall clock ahead by d, or back if d is negative.
func (c *Clock) Step(d time.Duration) { c.wall.Add(int64(d)) }

// Suspend has the machine suspended for d, within no time of the test.
func (c *Clock) Suspend(d time.Duration) {
	c.boot.Add(int64(d))
	c.Step(d)
}

// Now implements wheel.Clock.
func (c *Clock) Now() time.Time { return WithWall(now(), time.Duration(c.wall.Load())) }

// After implements wheel.Clock.
func (*Clock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// Read reads the three clocks.
func (c *Clock) Read() clock.Reading {
	c.reads.Add(1)
	return clock.Reading{Now: c.Now(), Boot: now().Sub(start) + time.Duration(c.boot.Load()), HasBoot: true}
}

// ReadWithoutBoot reads the clocks of a system that has no boot clock.
func (c *Clock) ReadWithoutBoot() clock.Reading {
	c.reads.Add(1)
	return clock.Reading{Now: c.Now()}
}

// Reads returns how often the three clocks were read.
func (c *Clock) Reads() int { return int(c.reads.Load()) }

// Late is the clock of a process whose timers fire late by that time, as if it had stood still. It is a wheel.Clock and
// shows the real time.
type Late time.Duration

// Now implements wheel.Clock.
func (Late) Now() time.Time { return time.Now() }

// After implements wheel.Clock.
func (l Late) After(d time.Duration) <-chan time.Time { return time.After(d + time.Duration(l)) }

// Fast is a clock that runs so many times as fast as that of the machine, for a test of what a process does over a long
// time while its server does little. It is a wheel.Clock.
type Fast int

// Now implements wheel.Clock.
func (f Fast) Now() time.Time { return start.Add(time.Duration(f) * time.Since(start)) }

// After implements wheel.Clock.
func (f Fast) After(d time.Duration) <-chan time.Time { return time.After(d / time.Duration(f)) }

var (
	start       = time.Now() // outside of bubbles, so with a monotonic reading
	bubbleStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
)

// now returns the time with a monotonic reading, in a bubble too.
func now() time.Time {
	t := time.Now()
	if t == t.Round(0) {
		t = start.Add(t.Sub(bubbleStart))
	}
	return t
}

// WithWall returns t with its wall clock moved by d and its monotonic reading left alone, as a clock step does.
// No exported way of package time leads there: it moves both and then takes the monotonic reading, the second
// word of a Time, back.
func WithWall(t time.Time, d time.Duration) time.Time {
	moved := t.Add(d)
	words := (*struct {
		wall uint64
		ext  int64
	})(unsafe.Pointer(&moved))
	words.ext -= int64(d)
	if moved.Sub(t) != 0 || moved.Round(0).Sub(t.Round(0)) != d {
		panic("clocktest: time.Time is laid out differently in this Go version, or t has no monotonic reading")
	}
	return moved
}
