package wheel

import "time"

// Clock is a source of time for tests. The Clock and Mock of github.com/benbjohnson/clock satisfy it. It must
// be safe for concurrent use.
type Clock interface {
	// Now returns the current time. If it goes back, entries fire late, never early or twice.
	Now() time.Time
	// After returns a channel that receives when d, which is positive, has passed. The wheel may stop
	// receiving, so the send must not block.
	After(d time.Duration) <-chan time.Time
}

// clockStep is the least difference by which a test has moved a Clock: more than the time that passes between
// two reads of a clock that runs.
const clockStep = 100 * time.Microsecond

// timeSource measures nanoseconds since the wheel was made and wakes the worker. With the system clock it
// reads monotonic time, so a step of the wall clock moves no deadline.
type timeSource struct {
	origin time.Time
	clock  Clock            // nil: the system clock
	wall   func() time.Time // the wall clock
	timer  *time.Timer      // used by the worker alone; nil until its first timed wait
}

func newTimeSource(clock Clock) timeSource {
	if clock == nil {
		return timeSource{origin: time.Now(), wall: time.Now}
	}
	return timeSource{origin: clock.Now(), wall: clock.Now, clock: clock}
}

// monotonic reports whether an instant follows the time that now measures. With a Clock, every instant does.
func (s *timeSource) monotonic(t time.Time) bool { return s.clock != nil || t != t.Round(0) }

func (s *timeSource) now() int64 {
	if s.clock != nil {
		return s.clocked()
	}
	return int64(time.Since(s.origin))
}

// clocked is bounded as deadlines are: a Clock that starts at the zero time may be set to today. It stays before
// maxDeadline, at which no entry fires.
func (s *timeSource) clocked() int64 {
	return min(max(int64(s.clock.Now().Sub(s.origin)), -maxDeadline), maxDeadline-1)
}

// until returns a channel that delivers at an instant, or nil if that has come. A test may move a Clock between
// the reading and the call of After, which would then count from too late an instant: so the Clock is read
// again.
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

// after returns a channel that delivers when d has passed. Only the worker calls it: a later call takes over
// the timer of an earlier one. A value left in the channel costs the worker one needless wake-up.
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

// stopTimer stops the worker's timer, so that an idle wheel causes no wake-up in the runtime.
func (s *timeSource) stopTimer() {
	if s.timer != nil {
		s.timer.Stop()
	}
}
