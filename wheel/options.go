package wheel

import (
	"log/slog"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
)

// Defaults of the options.
const (
	DefaultTickDuration  = time.Millisecond
	DefaultTicksPerWheel = 512
)

const (
	minTickDuration  = time.Microsecond
	maxTickDuration  = time.Hour
	maxTicksPerWheel = 1 << 16
)

// Option configures New, NewTyped and NewKeyed. If an option is given twice, the last one counts. A nil option,
// or one with a nil argument or a value out of range, is refused, even if a later one replaces it.
type Option interface{ apply(c *config) error }

type config struct {
	tick       time.Duration
	buckets    int
	maxPending int64
	executor   Executor
	clock      Clock
	logger     *slog.Logger
	onPanic    func(v any, stack []byte)
}

type option func(c *config) error

func (o option) apply(c *config) error { return o(c) }

func newConfig(opts []Option) (*config, error) {
	c := &config{
		tick:     DefaultTickDuration,
		buckets:  DefaultTicksPerWheel,
		executor: Goroutines(),
		logger:   slog.Default(),
	}
	if err := conventions.Apply(argument, c, opts, Option.apply); err != nil {
		return nil, err
	}
	if c.onPanic == nil {
		logger := c.logger
		c.onPanic = func(v any, stack []byte) {
			logger.Error("wheel: callback panicked", "panic", v, "stack", string(stack))
		}
	}
	return c, nil
}

// WithTickDuration sets the length of one tick: 1 µs to 1 h, by default 1 ms. If more than 16 entries are due
// within a tick, the wheel fires them together at its end. No entry ever fires before its deadline; a longer
// tick makes a busy wheel cheaper and its entries up to one tick late.
func WithTickDuration(d time.Duration) Option {
	return option(func(c *config) error {
		if d < minTickDuration || d > maxTickDuration {
			return argument.Error("WithTickDuration", d, "must be 1µs to 1h")
		}
		c.tick = d
		return nil
	})
}

// WithTicksPerWheel sets the number of buckets of one round: 1 to 65 536, by default 512. It is rounded up to
// the next power of two, as in Netty.
func WithTicksPerWheel(n int) Option {
	return option(func(c *config) error {
		if n < 1 || n > maxTicksPerWheel {
			return argument.Error("WithTicksPerWheel", n, "must be 1 to 65536")
		}
		c.buckets = n
		return nil
	})
}

// WithMaxPendingTimeouts limits the number of pending entries of the caller: those of AfterFunc, Every, Repeat,
// Schedule, NewTimeout, Sleep, Typed.Add and Keyed.Set. A further entry is refused with ErrTooManyPending. The
// default is 0: no limit.
//
// Two kinds of entries have room whatever the limit is, and do not count towards it: contexts of WithTimeout, which
// cannot be refused, and those of the other packages of this library. So locks, permits, limits and tasks work on a
// wheel that is full. Len and Stats.Pending count all entries, so they may be above the limit.
func WithMaxPendingTimeouts(n int) Option {
	return option(func(c *config) error {
		if n < 0 {
			return argument.Error("WithMaxPendingTimeouts", n, "must not be negative")
		}
		c.maxPending = int64(n)
		return nil
	})
}

// WithExecutor sets where callbacks run. The default is Goroutines(): no callback waits for another.
func WithExecutor(e Executor) Option {
	return option(func(c *config) error {
		if reason := e.refusal(); reason != "" {
			return argument.Error("WithExecutor", e, reason)
		}
		c.executor = e
		return nil
	})
}

// WithClock sets the wheel's source of time, for tests. The default is the monotonic system clock. Leases,
// waits and limits that use the wheel are measured by it too; see Now. The clock must stay within 146 years of
// its time at New: to the wheel, it stands still beyond.
func WithClock(clock Clock) Option {
	return option(func(c *config) error {
		if clock == nil {
			return argument.Nil("WithClock")
		}
		c.clock = clock
		return nil
	})
}

// WithLogger sets the logger that reports panics, schedules that ended because of a wrong instant, and more
// than 64 wheels that run in the process. The default is slog.Default() at the time of New.
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) error { return conventions.Set(argument, "WithLogger", &c.logger, l) })
}

// WithPanicHandler sets the function that receives each panic of a callback, a Cancelled hook, a Schedule or an
// ExecutorFunc, with its stack, instead of the logger. It runs on the goroutine that panicked, must be safe for
// concurrent use and must not panic.
func WithPanicHandler(f func(v any, stack []byte)) Option {
	return option(func(c *config) error {
		if f == nil {
			return argument.Nil("WithPanicHandler")
		}
		c.onPanic = f
		return nil
	})
}
