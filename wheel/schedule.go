package wheel

import (
	"log/slog"
	"time"
)

// Schedule tells at which instants a function is to be called. What github.com/robfig/cron parses satisfies
// it, and so do the Schedulers of github.com/RussellLuo/timingwheel.
//
// An instant with a monotonic clock reading, as prev.Add(d) has, is kept by the monotonic clock; one without,
// as from time.Date or a cron expression, by the wall clock. With WithClock, that clock keeps both.
type Schedule interface {
	// Next returns the first instant after prev, or the zero Time if there is none. It must not block. For
	// one entry it is not called concurrently.
	Next(prev time.Time) time.Time
}

// ScheduleFunc lets a function be a Schedule.
type ScheduleFunc func(prev time.Time) time.Time

// Next calls f.
func (f ScheduleFunc) Next(prev time.Time) time.Time { return f(prev) }

// Schedule calls f at the instants of s: first at s.Next(now); then, each time that f has returned, s.Next is
// asked for the instant after that of this firing. If that one has passed already, since the firing was late
// or f took long, missed instants are skipped, and the next firing is at s.Next(now). So f is called at most
// once for each instant, never before it, and it never overlaps itself.
//
// The entry ends when Next returns the zero Time. It also ends when Next panics, which is reported as a panic
// of f is, and when Next returns an instant that is not after its argument, which is logged as an error: f
// would be called without a pause otherwise.
//
// A step of the wall clock matters to instants that are kept by it. When it is set forward, or the machine
// was suspended, f is called up to a minute late. When it is set back, the next firing waits until the clock
// shows its instant, and instants that have fired do not fire again.
//
// Timer.Stop ends the entry, also from inside f. Timer.Reschedule moves only the next firing; Next is then asked
// for the instant after its new time. A panic of f does not end the entry.
//
// Schedule calls s.Next once, on the caller's goroutine, to which a panic of that call goes; later calls are
// made where f runs. It does not block otherwise. It returns a *cogwheel.InvalidError if s or f is nil,
// ErrNoNextTime if the first instant is the zero Time or not after now, ErrStopped, or ErrTooManyPending;
// then nothing is scheduled.
func (w *Wheel) Schedule(s Schedule, f func()) (Timer, error) {
	if f == nil {
		return Timer{}, errNilFunction
	}
	if g, ok := s.(ScheduleFunc); s == nil || ok && g == nil {
		return Timer{}, argument.Nil("schedule")
	}
	wall := w.scheduler.time.wall()
	first := s.Next(wall)
	if first.IsZero() || !first.After(wall) {
		return Timer{}, ErrNoNextTime
	}
	p := &struct {
		recurring
		calendar
	}{recurring{f: f}, calendar{s, &w.scheduler.time, w.scheduler.logger, first}}
	p.rule = &p.calendar
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
	instant  time.Time // of the next firing
}

// deadline is when the instant comes, or when to look at the wall clock again.
func (c *calendar) deadline(now int64) int64 {
	if c.time.monotonic(c.instant) {
		return deadlineAfter(0, c.instant.Sub(c.time.origin))
	}
	return deadlineAfter(now, min(c.instant.Sub(c.time.wall()), wallCheck))
}

func (c *calendar) early(now int64) (deadline int64, early bool) {
	if c.time.monotonic(c.instant) {
		return 0, false
	}
	return c.deadline(now), c.instant.After(c.time.wall())
}

func (c *calendar) next(now, due int64, moved bool) (deadline int64, ok bool) {
	wall, prev := c.time.wall(), c.instant
	if moved {
		prev = wall.Add(-time.Duration(now - due))
	}
	c.instant, ok = c.after(prev)
	if ok && !c.instant.After(wall) {
		c.instant, ok = c.after(wall)
	}
	return c.deadline(now), ok
}

// after returns the first instant of the schedule after prev; false if there is none.
func (c *calendar) after(prev time.Time) (time.Time, bool) {
	next := c.schedule.Next(prev)
	if next.IsZero() {
		return next, false
	}
	if !next.After(prev) {
		c.logger.Error("wheel: a schedule has ended, as its next instant is not after the last",
			"next", next, "last", prev)
		return next, false
	}
	return next, true
}
