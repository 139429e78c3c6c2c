package wheel

import (
	"fmt"
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

// Option configures a wheel. The set is closed: use the With functions of this package, each at most once.
type Option interface{ apply(c *config) }

type config struct {
	tick       time.Duration
	buckets    int
	maxPending int64
	executor   Executor
	clock      Clock
	logger     *slog.Logger
	onPanic    func(v any, stack []byte)

	seen map[string]bool
	err  error
}

type option struct {
	name  string
	value any
	set   func(c *config) (refusal string)
}

func (o option) apply(c *config) {
	switch reason := o.set(c); {
	case c.seen[o.name]:
		c.refuse(o.name, o.value, "given more than once")
	case reason != "":
		c.refuse(o.name, o.value, reason)
	}
	c.seen[o.name] = true
}

func (c *config) refuse(name string, value any, reason string) {
	if c.err == nil {
		c.err = &OptionError{Option: name, Value: value, Reason: reason}
	}
}

func newConfig(opts []Option) (*config, error) {
	c := &config{
		tick:     DefaultTickDuration,
		buckets:  DefaultTicksPerWheel,
		executor: Goroutines(),
		seen:     make(map[string]bool, len(opts)),
	}
	for i, o := range opts {
		if o == nil {
			return nil, &OptionError{Option: "Option", Value: fmt.Sprintf("#%d", i+1), Reason: "is nil"}
		}
		o.apply(c)
	}
	if c.logger == nil {
		c.logger = slog.Default()
	}
	if c.onPanic == nil {
		logger := c.logger
		c.onPanic = func(v any, stack []byte) {
			logger.Error("wheel: callback panicked", "panic", v, "stack", string(stack))
		}
	}
	return c, c.err
}

// WithTickDuration sets the length of one tick, the span within which a busy wheel fires entries together.
// Default 1 ms, range 1 µs to 1 h. No entry ever fires before its deadline; a longer tick makes a
// busy wheel cheaper and its entries up to one tick later.
func WithTickDuration(d time.Duration) Option {
	return option{"WithTickDuration", d, func(c *config) string {
		c.tick = d
		if d < minTickDuration || d > maxTickDuration {
			return fmt.Sprintf("out of range %v to %v", minTickDuration, maxTickDuration)
		}
		return ""
	}}
}

// WithTicksPerWheel sets the number of buckets of one round. Default 512, range 1 to 65 536; rounded up to
// the next power of two, as Netty does.
func WithTicksPerWheel(n int) Option {
	return option{"WithTicksPerWheel", n, func(c *config) string {
		c.buckets = n
		if n < 1 || n > maxTicksPerWheel {
			return fmt.Sprintf("out of range 1 to %d", maxTicksPerWheel)
		}
		return ""
	}}
}

// WithMaxPendingTimeouts limits the entries that may be pending at once; one more is refused with
// ErrTooManyPending. Default 0: no limit.
func WithMaxPendingTimeouts(n int64) Option {
	return option{"WithMaxPendingTimeouts", n, func(c *config) string {
		c.maxPending = n
		if n < 0 {
			return "must not be negative"
		}
		return ""
	}}
}

// WithExecutor sets where callbacks run. Default Goroutines(): no callback waits for another.
func WithExecutor(e Executor) Option {
	return option{"WithExecutor", e, func(c *config) string {
		c.executor = e
		return e.refusal()
	}}
}

// WithClock sets the wheel's source of time, for tests. Default: the monotonic system clock.
func WithClock(clock Clock) Option {
	return option{"WithClock", clock, func(c *config) string {
		c.clock = clock
		if clock == nil {
			return "is nil"
		}
		return ""
	}}
}

// WithLogger sets where the wheel reports panics of callbacks, schedules that have gone wrong, and misuse.
// Default slog.Default().
func WithLogger(l *slog.Logger) Option {
	return option{"WithLogger", l, func(c *config) string {
		c.logger = l
		if l == nil {
			return "is nil"
		}
		return ""
	}}
}

// WithPanicHandler sets the function that receives each panic of a callback, of a Schedule or of an ExecutorFunc, with
// its stack, in place of the logger. It runs on the goroutine that panicked, must be safe for concurrent use and
// must not panic.
func WithPanicHandler(f func(v any, stack []byte)) Option {
	return option{"WithPanicHandler", fmt.Sprintf("%p", f), func(c *config) string {
		c.onPanic = f
		if f == nil {
			return "is nil"
		}
		return ""
	}}
}
