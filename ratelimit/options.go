package ratelimit

import (
	"log/slog"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// Option configures New. If an option is given twice, the last one counts.
type Option interface{ apply(*config) error }

type optionFunc func(*config) error

func (f optionFunc) apply(c *config) error { return f(c) }

type config struct {
	wheel    *wheel.Wheel
	logger   *slog.Logger
	hooks    Hooks
	policy   Policy
	failures int
	probe    time.Duration
	timeout  time.Duration
}

// defaultTimeout outlasts one packet that is lost, which is sent again after 200 ms.
const defaultTimeout = 250 * time.Millisecond

// WithWheel sets the wheel on which waits, timeouts and probes are entries. The default is wheel.Default().
// The caller keeps it running until Close has returned: when it is stopped, waits return an error that
// matches wheel.ErrStopped, and other calls go on with their timeouts but ask Redis each time, even while it
// is down.
func WithWheel(w *wheel.Wheel) Option {
	return optionFunc(func(c *config) error {
		if w == nil {
			return argument.Nil("WithWheel")
		}
		c.wheel = w
		return nil
	})
}

// WithLogger sets the logger of outages of Redis, and of the warning of New. The default is slog.Default().
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(c *config) error {
		if l == nil {
			return argument.Nil("WithLogger")
		}
		c.logger = l
		return nil
	})
}

// WithHooks sets functions that are called for decisions, and when Redis goes down and comes back. The default
// is none.
func WithHooks(h Hooks) Option {
	return optionFunc(func(c *config) error {
		c.hooks = h
		return nil
	})
}

// WithPolicy sets what is decided while Redis is down: FailClosed() (default), FailOpen() or LocalShare(n).
func WithPolicy(p Policy) Option {
	return optionFunc(func(c *config) error {
		if p.kind == shareLocally && p.share < 1 {
			return argument.Error("LocalShare", p.share, "must be at least 1")
		}
		c.policy = p
		return nil
	})
}

// WithTimeout sets how long a decision may take, 1 ms or more. After that time the policy decides, and the
// script counts as one that Redis did not answer. The default is 250 ms, which outlasts the loss of one
// packet. Allow, AllowUpTo, Peek, Reserve, Cancel and Return keep to it, whatever the timeouts of the redis
// client are, and so does each script for waiters; Reset and the methods that set, read or delete a limit
// in Redis do not. It should be more than twice the time that Redis takes to answer, as a call may wait for
// the script before its own.
func WithTimeout(d time.Duration) Option {
	return optionFunc(func(c *config) error {
		if d < time.Millisecond {
			return argument.Error("WithTimeout", d, "must be at least 1ms")
		}
		c.timeout = d
		return nil
	})
}

// WithBreaker sets after how many calls in a row that Redis did not answer the policy decides without
// asking, 1 or more, default 3, and how often Redis is probed from then on, 1 ms or more, default 250 ms.
// All nodes of a cluster have one breaker. A probe is the script of the last decision that failed. It takes
// no permits but writes the state of the key back as it is, so the policy goes on deciding while Redis
// answers reads and refuses writes. After an answer that is no outage, decisions ask Redis again;
// docs/ratelimit.md has the table.
func WithBreaker(failures int, probe time.Duration) Option {
	return optionFunc(func(c *config) error {
		switch {
		case failures < 1:
			return argument.Error("WithBreaker failures", failures, "must be at least 1")
		case probe < time.Millisecond:
			return argument.Error("WithBreaker probe", probe, "must be at least 1ms")
		}
		c.failures, c.probe = failures, probe
		return nil
	})
}

// LimiterOption configures Limiter. If an option is given twice, the last one counts.
type LimiterOption interface{ applyLimiter(*limiterOptions) error }

// limiterOptions are what requests for a key have in common that are counted together.
type limiterOptions struct {
	limit     Limit
	algorithm Algorithm
	hashTag   string // none: each key has its own
}

// Algorithm is how a Limiter counts.
type Algorithm uint8

const (
	// GCRA is a token bucket kept in one timestamp: permits return one by one at Rate per Per, and up to
	// Burst of them may be used at once. In any time w it grants at most Burst + Rate*w/Per.
	GCRA Algorithm = iota
	// FixedWindow grants at most Rate in each window of Per. A window begins with the first request after
	// the end of the window before it, or exactly at that end if a caller waits for it. Within Per around
	// the start of a window it may grant twice the rate.
	FixedWindow

	logAlgorithm Algorithm = 255 // of StoredLimiters
	allAlgorithm Algorithm = 254 // of several limits at once
)

// String returns "GCRA", "fixed window", or "unknown".
func (a Algorithm) String() string {
	switch a {
	case GCRA:
		return "GCRA"
	case FixedWindow:
		return "fixed window"
	}
	return "unknown"
}

type limiterOptionFunc func(*limiterOptions) error

func (f limiterOptionFunc) applyLimiter(c *limiterOptions) error { return f(c) }

// WithAlgorithm sets how permits are counted: GCRA (default) or FixedWindow.
func WithAlgorithm(a Algorithm) LimiterOption {
	return limiterOptionFunc(func(c *limiterOptions) error {
		if a > FixedWindow {
			return argument.Error("WithAlgorithm", uint8(a), "must be GCRA or FixedWindow")
		}
		c.algorithm = a
		return nil
	})
}

// WithHashTag puts all keys of the Limiter into one slot of a cluster, the slot of the tag: 1 byte or more.
// In Redis, the key k under the prefix p is then p:{tag}:key:k, or p:{tag}:window:k for FixedWindow, where
// the tag is escaped and hashed as keys are; these keys share no count with those of a Limiter without the
// tag. Client.All needs it on a cluster: for a limit of each user and one of each service, the name of the
// service is the tag of the user keys and the key of the other Limiter. The default is that keys spread
// over the slots.
func WithHashTag(tag string) LimiterOption {
	return limiterOptionFunc(func(c *limiterOptions) error {
		if tag == "" {
			return argument.Error("WithHashTag", `""`, "must be at least 1 byte")
		}
		c.hashTag = tag
		return nil
	})
}
