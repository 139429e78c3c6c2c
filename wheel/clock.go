package wheel

import "time"

// Clock is a source of time for tests. The Clock and Mock of github.com/benbjohnson/clock satisfy it.
type Clock interface {
	Now() time.Time
	After(d time.Duration) <-chan time.Time
}

// timeSource measures nanoseconds since the wheel was made and wakes the worker. With the system clock it
// reads monotonic time, so a step of the wall clock moves no deadline.
type timeSource struct {
	origin time.Time
	clock  Clock       // nil: the system clock
	timer  *time.Timer // the worker's own; nil until its first timed wait
}

func newTimeSource(clock Clock) timeSource {
	if clock == nil {
		return timeSource{origin: time.Now()}
	}
	return timeSource{origin: clock.Now(), clock: clock}
}

func (s *timeSource) now() int64 {
	if s.clock == nil {
		return int64(time.Since(s.origin))
	}
	return int64(s.clock.Now().Sub(s.origin))
}

// after returns a channel that delivers once d has passed. It serves the worker alone: a later call takes the
// earlier one's timer over. A tick left in the channel costs the worker one look at the shards, no more.
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

// rest stops the worker's timer, so that an idle wheel leaves the runtime nothing to wake up for.
func (s *timeSource) rest() {
	if s.timer != nil {
		s.timer.Stop()
	}
}
