package wheel

import "time"

// Clock is a source of time for tests. The Clock and Mock of github.com/benbjohnson/clock satisfy it. It must
// be safe for concurrent use.
type Clock interface {
	// Now returns the current time. Should it go back, entries fire late, never early or twice.
	Now() time.Time
	// After returns a channel that receives once d, which is positive, has passed. The wheel may stop
	// receiving, so the send must not block.
	After(d time.Duration) <-chan time.Time
}

// clockStep is by how much a Clock has moved if a test has moved it: more than the time that passes between two
// looks at one that runs by itself.
const clockStep = 100 * time.Microsecond

// timeSource measures nanoseconds since the wheel was made and wakes the worker. With the system clock it
// reads monotonic time, so a step of the wall clock moves no deadline.
type timeSource struct {
	origin time.Time
	clock  Clock            // nil: the system clock
	wall   func() time.Time // what the clock shows
	timer  *time.Timer      // the worker's own; nil until its first timed wait
}

func newTimeSource(clock Clock) timeSource {
	if clock == nil {
		return timeSource{origin: time.Now(), wall: time.Now}
	}
	return timeSource{origin: clock.Now(), wall: clock.Now, clock: clock}
}

// monotonic reports whether an instant is kept by the time that now measures, which a Clock's always is.
func (s *timeSource) monotonic(t time.Time) bool { return s.clock != nil || t != t.Round(0) }

func (s *timeSource) now() int64 {
	if s.clock == nil {
		return int64(time.Since(s.origin))
	}
	return int64(s.clock.Now().Sub(s.origin))
}

// until returns a channel that delivers at an instant, or nil if that has come. A Clock may be moved between the
// look at it and the call of After, which would then count from too late an instant: so it is looked at again.
func (s *timeSource) until(instant int64) <-chan time.Time {
	for {
		now := s.now()
		if instant <= now {
			return nil
		}
		timeUp := s.after(time.Duration(instant - now))
		if s.clock == nil || s.now()-now < int64(clockStep) {
			return timeUp
		}
	}
}

// after returns a channel that delivers once d has passed. It serves the worker alone: a later call takes the
// earlier one's timer over. A value left in the channel costs the worker one needless wake-up, no more.
func (s *timeSource) after(d time.Duration) <-chan time.Time {
	switch {
	case s.clock != nil:
		return s.clock.After(d)
	case s.timer == nil:
		s.timer = time.NewTimer(d)
	default:
		s.timer.Reset(d)
	}
	return s.timer.C
}

// stopTimer stops the worker's timer, so that an idle wheel leaves the runtime nothing to wake up for.
func (s *timeSource) stopTimer() {
	if s.timer != nil {
		s.timer.Stop()
	}
}
