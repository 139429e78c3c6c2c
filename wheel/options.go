package wheel

import (
	"log/slog"
	"time"
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

// Option configures New and NewTyped. Of an option that is given twice, the last one counts. A nil option, or
// one with a nil argument or a value out of range, is refused, also if a later one replaces it.
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
	for i, o := range opts {
		if o == nil {
			return nil, argument.Error("option", i, "is nil")
		}
		if err := o.apply(c); err != nil {
			return nil, err
		}
	}
	if c.onPanic == nil {
		logger := c.logger
		c.onPanic = func(v any, stack []byte) {
			logger.Error("wheel: callback panicked", "panic", v, "stack", string(stack))
		}
	}
	return c, nil
}

// WithTickDuration sets the length of one tick, the span within which the wheel fires more than 16 entries
// together: 1 µs to 1 h, default 1 ms. No entry ever fires before its deadline; a longer tick makes a busy
// wheel cheaper and its entries up to one tick later.
func WithTickDuration(d time.Duration) Option {
	return option(func(c *config) error {
		if d < minTickDuration || d > maxTickDuration {
			return argument.Error("WithTickDuration", d, "must be 1µs to 1h")
		}
		c.tick = d
		return nil
	})
}

// WithTicksPerWheel sets the number of buckets of one round: 1 to 65 536, default 512. It is rounded up to
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

// WithMaxPendingTimeouts limits the entries that may be pending at once, those of Sleep, WithTimeout and the
// other packages of this library included; one more is refused with ErrTooManyPending. The default is 0, no
// limit.
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

// WithClock sets the wheel's source of time, for tests. The default is the monotonic system clock. Leases, waits
// and limits on the wheel are measured by it as well; see Now.
func WithClock(clock Clock) Option {
	return option(func(c *config) error {
		if clock == nil {
			return argument.Nil("WithClock")
		}
		c.clock = clock
		return nil
	})
}

// WithLogger sets where the wheel reports panics, schedules that end by a wrong instant, and more than 64
// wheels at work in the process. The default is slog.Default(), as it is when the wheel is made.
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) error {
		if l == nil {
			return argument.Nil("WithLogger")
		}
		c.logger = l
		return nil
	})
}

// WithPanicHandler sets the function that receives, in place of the logger, each panic of a callback, a
// Cancelled hook, a Schedule or an ExecutorFunc, with its stack. It runs on the goroutine that panicked, must
// be safe for concurrent use and must not panic.
func WithPanicHandler(f func(v any, stack []byte)) Option {
	return option(func(c *config) error {
		if f == nil {
			return argument.Nil("WithPanicHandler")
		}
		c.onPanic = f
		return nil
	})
}
