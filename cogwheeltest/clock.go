package cogwheeltest

import (
	"testing/synctest"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// Clock is a clock that a test moves. The Mock of github.com/benbjohnson/clock satisfies it.
type Clock interface {
	wheel.Clock
	// Add moves the clock forward by d and runs everything that is due.
	Add(d time.Duration)
}

// inBubble reports whether the calling goroutine is in a bubble of testing/synctest. There is no other way to
// find out than that Wait panics outside of one.
func inBubble() (yes bool) {
	defer func() { _ = recover() }()
	synctest.Wait()
	return true
}

// clock is the server's time.
type clock struct {
	read   func() time.Time
	origin time.Time // what read returned when the server started
	epoch  time.Time // what the server's clock showed then
	ahead  time.Duration
}

// earliest is the first time of the server's clock if the clock of the test begins before it. No server's clock shows
// 1970, and some arithmetic relies on that.
var earliest = time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC)

func newClock(read func() time.Time) clock {
	origin := read()
	c := clock{read: read, origin: origin, epoch: origin}
	if origin.Before(earliest) {
		c.epoch = earliest
	}
	return c
}

func (c *clock) now() time.Time { return c.epoch.Add(c.read().Sub(c.origin) + c.ahead) }

// Now returns the server's time, by which leases end and limits are counted.
func (s *Server) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock.now()
}

// setTimeLocked gives the embedded server the time.
func (s *Server) setTimeLocked() { s.redis.SetTime(s.clock.now()) }

// advanceSteps is the number of steps in which Advance moves a Clock. It is small, so that Advance is quick. It is
// large enough for a renewal, which is due a third of a lease after the last one, to come before the lease ends.
const advanceSteps = 20

// Advance moves time forward by d, which must not be negative.
//
// In a bubble it sleeps for d of the bubble's time, and then waits until every goroutine of the bubble waits. So
// everything that is due within d has happened when it returns. With a Clock it moves the clock in steps, and the
// server's clock follows. It does not wait for the effects. Otherwise it moves only the server's clock, ahead of the
// clock of the process: keys expire, and a holder learns of it at its next renewal.
func (s *Server) Advance(d time.Duration) {
	s.tb.Helper()
	if d < 0 {
		s.tb.Errorf("cogwheeltest: time does not go back by %v", -d)
		return
	}
	s.advancing <- struct{}{} // one at a time, as synctest.Wait wants
	defer func() { <-s.advancing }()
	switch {
	case s.bubble:
		time.Sleep(d) // of the bubble's time
		synctest.Wait()
	case s.config.clock != nil:
		for range advanceSteps - 1 {
			s.config.clock.Add(d / advanceSteps)
		}
		s.config.clock.Add(d - (advanceSteps-1)*(d/advanceSteps))
	default:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.clock.ahead += d
	}
}
