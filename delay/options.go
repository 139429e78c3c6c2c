package delay

import (
	"log/slog"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/client"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	// DefaultLease is the lease of a claimed task without WithLease.
	DefaultLease = 30 * time.Second

	// DefaultPoll is the poll interval of a Client without WithPoll.
	DefaultPoll = 10 * time.Second

	// DefaultAttempts is how often a task is attempted without WithRetry, for about a day.
	DefaultAttempts = 36

	// DefaultMaxFailed is how many failed tasks a queue keeps without WithMaxFailed.
	DefaultMaxFailed = 10_000

	// MaxID is the length of the longest id of a task, in bytes.
	MaxID = 1024

	// MaxPayload is the length of the longest payload, in bytes.
	MaxPayload = 1 << 20

	maxHeaders = 1024 // bytes
	maxError   = 512  // bytes of the error of a failed task that Redis keeps

	// MaxDelay is the longest delay.
	MaxDelay = 10 * 365 * 24 * time.Hour
)

// Option configures New. If an option is given twice, the last one counts. A nil option, or one with a nil argument or
// a value out of range, is refused, even if a later one replaces it.
type Option interface{ apply(*config) error }

type config struct {
	client.Options
	hooks Hooks
}

type option func(*config) error

func (o option) apply(c *config) error { return o(c) }

// WithWheel sets the wheel that times tasks, renewals and waits. The default is wheel.Default(). The caller must keep
// it running until Close has returned.
func WithWheel(w *wheel.Wheel) Option {
	return option(func(c *config) error { return conventions.Set(argument, "WithWheel", &c.Wheel, w) })
}

// WithLogger sets the logger. The default is slog.Default() at the time of New.
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) error { return conventions.Set(argument, "WithLogger", &c.Logger, l) })
}

// WithHooks sets functions that the Client calls for metrics and traces. By default it calls none. To use two Hooks,
// such as your own beside those of contrib/cogwheelotel, pass a third one whose functions call both.
func WithHooks(h Hooks) Option {
	return option(func(c *config) error {
		c.hooks = h
		return nil
	})
}

// WithPoll sets the longest time between two queries of a process that serves a queue: 10 ms to 1 h, by default 10 s.
// Each pause is drawn at random from d/5 to d. Messages announce tasks that are due earlier than all others; polling
// covers lost messages.
func WithPoll(d time.Duration) Option {
	return option(func(c *config) error { return c.SetPoll(d) })
}

func newConfig(opts []Option) (config, error) {
	c := config{Options: client.Options{
		Package: argument, Logger: slog.Default(), Poll: DefaultPoll,
		Endless: "calls to a Redis that hangs would never end",
	}}
	err := conventions.Apply(argument, &c, opts, Option.apply)
	c.SetDefaultWheel()
	return c, err
}

// QueueOption configures Serve of this value of a Queue, and what Check expects; no other method uses it. If processes
// differ, the one that has claimed a task decides. If an option is given twice, the last one counts.
type QueueOption interface{ applyQueue(*queueConfig) error }

type queueConfig struct {
	lease    time.Duration
	attempts int
	backoff  func(failures int, err error) time.Duration
	failed   int // tasks that are kept
}

type queueOption func(*queueConfig) error

func (o queueOption) applyQueue(c *queueConfig) error { return o(c) }

// WithLease sets the lease of a claimed task: ten ticks of the wheel, at least 10 ms, to 365 days; by default 30 s. It
// is renewed while the task runs. The tasks of a process that dies run again when it ends.
func WithLease(d time.Duration) QueueOption {
	return queueOption(func(c *queueConfig) error {
		c.lease = d
		return nil
	})
}

// WithRetry sets how often a task is attempted at most, 1 or more, if its handler returns errors, and the time until
// the next attempt, 0 to MaxDelay; other times count as the nearer of these. backoff gets the number of failures, 1
// or more, and the error of the last attempt: that of the handler, or one that describes its panic. Several calls may
// run at a time. A nil backoff is refused, also for one attempt. The default is DefaultAttempts and
// Backoff(time.Second, time.Hour): about a day.
//
// Attempts whose lease was lost do not count, but the 25th loss fails the task: see IncidentLostTooOften.
func WithRetry(attempts int, backoff func(failures int, err error) time.Duration) QueueOption {
	return queueOption(func(c *queueConfig) error {
		switch {
		case attempts < 1:
			return argument.Error("WithRetry attempts", attempts, "must be at least 1")
		case backoff == nil:
			return argument.Nil("WithRetry backoff")
		}
		c.attempts, c.backoff = attempts, backoff
		return nil
	})
}

// WithMaxFailed sets how many failed tasks the queue keeps, 1 to 1 000 000; by default DefaultMaxFailed. Each is kept
// for a week. When another task fails, or while no task is due, Redis deletes older ones; Stats.Deleted counts these,
// and Hooks.Incident and the log report them.
func WithMaxFailed(tasks int) QueueOption {
	return queueOption(func(c *queueConfig) error {
		if tasks < 1 || tasks > 1_000_000 {
			return argument.Error("WithMaxFailed", tasks, "must be 1 to 1000000")
		}
		c.failed = tasks
		return nil
	})
}

// Backoff returns a backoff that begins with first and doubles up to longest, whatever the error.
func Backoff(first, longest time.Duration) func(failures int, err error) time.Duration {
	return func(failures int, _ error) time.Duration {
		d := first
		for i := 1; i < failures; i++ {
			if d > longest/2 { // the double may not exist
				return longest
			}
			d *= 2
		}
		return min(d, longest)
	}
}

// ScheduleOption configures Schedule, ScheduleAt and Reschedule. If an option is given twice, the last one counts.
type ScheduleOption interface{ applySchedule(*scheduleConfig) }

type scheduleConfig struct {
	absent   bool
	most     time.Duration
	attempts int
}

type scheduleOption func(*scheduleConfig)

func (o scheduleOption) applySchedule(c *scheduleConfig) { o(c) }

// IfAbsent makes Schedule keep a task of the id that is pending, or claimed and not cancelled, and return nil, as for
// a periodic task that every process registers. ScheduleAll counts a kept task in its result, and Stats.Scheduled
// does not. Reschedule ignores IfAbsent.
func IfAbsent() ScheduleOption { return scheduleOption(func(c *scheduleConfig) { c.absent = true }) }

// WithMaxWait makes a task run d after it was scheduled for the first time at the latest, however often it is
// scheduled again or rescheduled: a debounce with a longest wait, 1 ns to MaxDelay. Each of the calls must give it;
// one without it is not bounded. The first time is a Schedule that finds no pending task of the id, or one that has
// Failures or Losses or was scheduled without WithMaxWait. 0 is no bound.
func WithMaxWait(d time.Duration) ScheduleOption {
	return scheduleOption(func(c *scheduleConfig) { c.most = d })
}

// WithAttempts sets how often the task is attempted at most, 1 or more, in place of the attempts of WithRetry; 0 stands
// for these. It counts wherever the task is served, for RetryFailed too, and with ScheduleAll for each of its tasks.
// Reschedule refuses it: the task keeps its attempts.
func WithAttempts(n int) ScheduleOption {
	return scheduleOption(func(c *scheduleConfig) { c.attempts = n })
}
