package wheel

import (
	"log/slog"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
)

// Schedule computes the instants at which a function is called. The schedules of github.com/robfig/cron satisfy
// it, and so do the Schedulers of github.com/RussellLuo/timingwheel.
//
// An instant with a monotonic clock reading, such as prev.Add(d), follows the monotonic clock. An instant
// without one, such as the result of time.Date or of a cron expression, follows the wall clock. With WithClock,
// both follow that clock.
type Schedule interface {
	// Next returns the first instant after prev, or the zero Time if there is none. It must not block. For one
	// entry there are no concurrent calls.
	Next(prev time.Time) time.Time
}

// ScheduleFunc is a function as a Schedule.
type ScheduleFunc func(prev time.Time) time.Time

// Next calls f.
func (f ScheduleFunc) Next(prev time.Time) time.Time { return f(prev) }

// Schedule calls f at the instants of s, and passes the instant. The first is s.Next(now). Each time that f has
// returned, Schedule asks s.Next for the instant after the one of this firing. If that has already passed, because
// the firing was late or f took long, it skips the missed instants, and the next firing is at s.Next(now). So it
// calls f at most once for each instant, never before it, and f never overlaps itself.
//
// The entry ends when Next returns the zero Time. It also ends when Next panics, which is reported like a panic
// of f.
//
// Next may fail to return a later instant than its argument, as a rule by time.Date may where daylight saving time
// skips an hour. Schedule then passes later arguments, up to 32 days later, until it does, and logs a warning. If it
// never does, the entry ends, and an error is logged.
//
// Instants that follow the wall clock also follow its steps. After a step forward, or if the machine was suspended, f
// is called up to a minute late. After a step back, the next firing waits until the clock shows its instant, and
// instants that have fired do not fire again.
//
// Timer.Stop ends the entry, also from inside f. Timer.Reschedule moves only the next firing: f gets its new time,
// and Next is then asked for the instant after it. A panic of f does not end the entry. With WithJitter, a firing
// comes after its instant; everything said here of instants holds for the instants of s.
//
// Schedule calls s.Next once on the caller's goroutine; a panic of that call goes on to the caller. Later calls
// run where f runs. Schedule does not block otherwise. It returns a *cogwheel.InvalidError if s or f is nil or
// an option is invalid, ErrNoNextTime if there is no instant after now, ErrStopped, or ErrTooManyPending; then
// nothing is scheduled.
func (w *Wheel) Schedule(s Schedule, f func(at time.Time), opts ...RepeatOption) (Timer, error) {
	if f == nil {
		return Timer{}, errNilFunction
	}
	if g, ok := s.(ScheduleFunc); s == nil || ok && g == nil {
		return Timer{}, argument.Nil("schedule")
	}
	var j jitter
	if err := conventions.Apply(argument, &j, opts, RepeatOption.apply); err != nil {
		return Timer{}, err
	}
	p := &struct {
		recurring
		calendar
	}{calendar: calendar{schedule: s, time: &w.scheduler.time, logger: w.scheduler.logger, jitter: j}}
	first, ok := p.instantAfter(w.scheduler.time.wall())
	if !ok {
		return Timer{}, ErrNoNextTime
	}
	p.instant, p.f, p.rule = first, func() { f(p.at()) }, &p.calendar
	p.draw()
	now := w.scheduler.time.now()
	return w.objects.schedule(time.Duration(p.deadline(now)-now), &p.recurring)
}

// wallCheck is how long a step of the wall clock may stay unnoticed.
const wallCheck = time.Minute

// calendar is the rule of Schedule.
type calendar struct {
	schedule Schedule
	time     *timeSource
	logger   *slog.Logger
	jitter

	mu      sync.Mutex // of set and at; after the wheel's Stop, Unprocessed.Func may be called during a firing
	instant time.Time  // of the next firing, or of the one in progress
}

func (c *calendar) set(instant time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.instant = instant
}

func (c *calendar) at() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.instant
}

// deadline returns when the firing is due, or when to read the wall clock again.
func (c *calendar) deadline(now int64) int64 {
	if c.time.monotonic(c.instant) {
		return deadlineAfter(0, c.delayed().Sub(c.time.origin))
	}
	return deadlineAfter(now, min(c.delayed().Sub(c.time.wall()), wallCheck))
}

// delayed returns the instant with its jitter.
func (c *calendar) delayed() time.Time { return c.instant.Add(c.current) }

func (c *calendar) begin(now, due int64, moved bool) (deadline int64, early bool) {
	if moved {
		c.set(c.time.wall().Add(-time.Duration(now - due)))
		return 0, false
	}
	if c.time.monotonic(c.instant) {
		return 0, false
	}
	return c.deadline(now), c.delayed().After(c.time.wall())
}

func (c *calendar) next(now, _ int64, _ bool) (deadline int64, ok bool) {
	wall, prev := c.time.wall(), c.instant
	next, ok := c.instantAfter(prev)
	if ok && !next.After(wall) {
		prev = wall
		next, ok = c.instantAfter(prev)
	}
	if !ok && !next.IsZero() {
		c.logger.Error("wheel: a schedule has ended, as its next instant is not after the last",
			"next", next, "last", prev)
	}
	c.set(next)
	c.draw()
	return c.deadline(now), ok
}

// maxStandstill is how long a rule may stand still: a rule by months may do so until the next month.
const maxStandstill = 32 * 24 * time.Hour

// instantAfter returns the first instant of the schedule after prev. It returns false if there is none, with the
// instant at which the schedule stands still, if it does.
func (c *calendar) instantAfter(prev time.Time) (next time.Time, ok bool) {
	next = c.schedule.Next(prev)
	if next.IsZero() || next.After(prev) {
		return next, !next.IsZero()
	}
	step := time.Minute
	for later := step; later <= maxStandstill; later += step {
		if later >= 2*time.Hour { // a change of the clock is mostly over
			step = time.Hour
		}
		from := prev.Add(later)
		if goesOn := c.schedule.Next(from); goesOn.After(from) {
			c.logger.Warn("wheel: a schedule stood still, and was asked for an instant after a later time",
				"next", goesOn, "last", prev)
			return goesOn, true
		}
	}
	return next, false
}
