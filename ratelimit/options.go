package ratelimit

import (
	"log/slog"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/client"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/keys"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/outage"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Option configures New. If an option is given twice, the last one counts.
type Option interface{ apply(*config) error }

type optionFunc func(*config) error

func (f optionFunc) apply(c *config) error { return f(c) }

type config struct {
	client.Options
	hooks    Hooks
	policy   Policy
	failures int
	probe    time.Duration
	timeout  time.Duration
}

// defaultTimeout outlasts one packet that is lost, which is sent again after 200 ms.
const defaultTimeout = 250 * time.Millisecond

// WithWheel sets the wheel that times waits, timeouts and probes. The default is wheel.Default(). The caller
// must keep it running until Close has returned: when it is stopped, waits return an error that matches
// wheel.ErrStopped. Other calls keep their timeouts, but ask Redis each time, even while it is down.
func WithWheel(w *wheel.Wheel) Option {
	return optionFunc(func(c *config) error { return conventions.Set(argument, "WithWheel", &c.Wheel, w) })
}

// WithLogger sets the logger that reports outages of Redis, panics, and the warning of New. The default is
// slog.Default() at the time of New.
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(c *config) error { return conventions.Set(argument, "WithLogger", &c.Logger, l) })
}

// WithHooks sets functions that the Client calls for decisions, and when Redis goes down and comes back. By
// default it calls none.
func WithHooks(h Hooks) Option {
	return optionFunc(func(c *config) error {
		c.hooks = h
		return nil
	})
}

// WithPolicy sets the decision while Redis is down: FailClosed(), which is the default, FailOpen() or
// LocalShare(n).
func WithPolicy(p Policy) Option {
	return optionFunc(func(c *config) error {
		if p.policy.Kind == outage.Share && p.policy.Share < 1 {
			return argument.Error("LocalShare", p.policy.Share, "must be at least 1")
		}
		c.policy = p
		return nil
	})
}

// WithTimeout sets how long a decision may take, 1 ms or more. After that time the policy decides, and the
// script counts as not answered. The default is 250 ms, which outlasts the loss of one packet. The time of a
// call counts from its arrival, whatever the timeouts of rdb. A process that notices the end of the time 5 ms or
// more late was paused: the call then waits for the answer as much longer, at most the time again.
//
// Allow, AllowUpTo, Peek, Reserve, TryReserve, Settle, Cancel and Return keep to the time, and so does each script for
// waiters. Reset and the methods that set, read or delete a limit in Redis do not. The time should be more than twice
// the time that Redis takes to answer, because a call may wait for the script before its own.
func WithTimeout(d time.Duration) Option {
	return optionFunc(func(c *config) error {
		if d < time.Millisecond {
			return argument.Error("WithTimeout", d, "must be at least 1ms")
		}
		c.timeout = d
		return nil
	})
}

// WithBreaker sets when the Client stops asking a node that does not answer, and how often it probes the node
// then. After the given number of failures, 1 or more, by default 3, the policy decides without asking. A
// failure is a script that Redis did not answer in time, or answered that it cannot serve now; the end of a caller's
// context is none, even if the policy decides then. Scripts that were sent together count as one, and any answer begins
// the count again. The Client then probes every probe, 1 ms or more, by default 250 ms. Each node of a cluster or a
// Ring is counted separately.
//
// A probe is the script of the last decision that failed. It takes no permits, but writes the state of the key
// back as it is, so the policy goes on deciding while Redis answers reads and refuses writes. After an answer
// that is no outage, decisions ask Redis again; docs/ratelimit.md lists these answers.
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

// WithSharedScripts sets whether decisions of GCRA about several keys share a script, so that one script names all of
// them. The default is true: they share scripts if the client is for a single server and CLIENT INFO shows that there
// is no proxy in between. The Client sends it in the background, until it has an answer. With false, it does not send
// it, and each key has a script to itself. Calls still share pipelines.
func WithSharedScripts(on bool) Option {
	return optionFunc(func(c *config) error { return c.SetSharedScripts(on) })
}

// LimiterOption configures Limiter. If an option is given twice, the last one counts.
type LimiterOption interface{ applyLimiter(*limiterConfig) error }

type limiterConfig struct {
	keys.Options
	shadow bool
	debt   *int64 // nil: one burst
}

// Algorithm is how a Limiter counts.
type Algorithm uint8

const (
	// GCRA is a token bucket, stored as one timestamp: permits return one by one at Rate per Per, and up to
	// Burst of them may be used at once. In any time w it grants at most Burst + Rate*w/Per.
	GCRA Algorithm = iota
	// FixedWindow grants at most Rate in each window of length Per. A window begins with the first request
	// after the previous window has ended, or exactly at that end if a caller waits for it. It does not follow the
	// calendar; examples/recipes has a quota for each day. In a time of Per around the start of a window it may grant
	// twice the rate.
	//
	// A debt of Reservation.Settle is charged to the window, and the part for which the window has no room to the
	// next one, up to Rate permits. Then nothing is granted until the next window begins, and charges of the window
	// before it can no longer be given back.
	FixedWindow
	// SlidingWindow counts in windows of length Per that follow each other by the clock of Redis. A request is
	// granted if the sum of three numbers is at most Rate: its permits, the permits granted in the current
	// window, and a share of the permits granted in the previous window. The share is the part of the previous
	// window that lies less than Per before now, rounded up to a whole permit, as if these permits had been
	// granted evenly.
	//
	// In each window it grants at most Rate. In any time w it grants at most Rate + Rate*w/Per, as GCRA does
	// with a burst of Rate; in any time of Per, at most 2*Rate - 1. It reaches that much if all permits of a
	// window are granted in its last millisecond. While requests are always waiting, it grants Rate - 1 in each
	// window, and with a Rate of 1 one permit in two windows. It grants nothing ahead of time: a caller that
	// waits for many permits may go on waiting while other processes take few at a time. Rate times Per in
	// milliseconds must be below 2^53.
	//
	// A debt of Reservation.Settle is charged to the window, and the part for which the window has no room to the
	// next one, up to Rate permits above the limit. Then RetryAfter and ResetAfter are lower bounds. Permits that
	// are given back count in no window, and the bounds hold for the others.
	SlidingWindow
)

const (
	logAlgorithm uint8 = 255 // of StoredLimiters
	allAlgorithm uint8 = 254 // of several limits at once
)

// String returns "GCRA", "fixed window", "sliding window", or "unknown".
func (a Algorithm) String() string {
	if int(a) < len(algo.Kinds) {
		return algo.Kinds[a].Text
	}
	return "unknown"
}

type limiterOptionFunc func(*limiterConfig) error

func (f limiterOptionFunc) applyLimiter(c *limiterConfig) error { return f(c) }

// WithAlgorithm sets how permits are counted: GCRA, which is the default, FixedWindow or SlidingWindow.
func WithAlgorithm(a Algorithm) LimiterOption {
	return limiterOptionFunc(func(c *limiterConfig) error {
		if int(a) >= len(algo.Kinds) {
			return argument.Error("WithAlgorithm", uint8(a), "must be GCRA, FixedWindow or SlidingWindow")
		}
		c.Algorithm = uint8(a)
		return nil
	})
}

// WithHashTag puts all keys of the Limiter into one slot of a cluster: the slot of tag, 1 byte or more. The key
// k under the prefix p is then p:{tag}:key:k in Redis, p:{tag}:window:k for FixedWindow, or p:{tag}:sliding:k
// for SlidingWindow; the tag is escaped and hashed as keys are. These keys share no count with the keys of a
// Limiter without the tag. By default keys spread over the slots.
//
// Client.All needs the option on a cluster. For a limit of each user and a limit of each service, use the name
// of the service as the tag of the user keys, and as the key of the other Limiter.
func WithHashTag(tag string) LimiterOption {
	return limiterOptionFunc(func(c *limiterConfig) error {
		if tag == "" {
			return argument.Error("WithHashTag", `""`, "must be at least 1 byte")
		}
		c.HashTag = tag
		return nil
	})
}

// WithDebt sets by how many permits the debts of a key, which Reservation.Settle charges, may exceed a whole burst: 0
// to MaxRate, but with FixedWindow and SlidingWindow at most Rate. The default is one burst. With a burst of 100 and
// WithDebt(50), no debt takes the used permits above 150; with GCRA a request for one is then denied until 51 have come
// back. The bound is that of the Limiter that made the Reservation: other Limiters of the key may have another one. The
// bound of a StoredLimiter is its rate.
func WithDebt(n int64) LimiterOption {
	return limiterOptionFunc(func(c *limiterConfig) error {
		if n < 0 || n > MaxRate {
			return argument.Error("WithDebt", n, "must be 0 to 4294967295")
		}
		c.debt = &n
		return nil
	})
}

// WithShadow makes the Limiter decide and count as always but refuse nothing, so that a limit can be tried on the
// requests of production before it is enforced. By default a Limiter enforces its limit. Both kinds share the
// counts of one prefix: give a limit that is tried beside an enforced one a prefix of its own, or each request that
// asks both takes its permits twice.
//
// A call waits for the decision of Redis, as without the option: while Redis hangs, up to the time of WithTimeout,
// until the breaker opens. WaitFunc does not delay its caller: it returns at once and asks in the background.
//
// Every Result is Allowed; WouldDeny is true if the request would have been denied, or would have failed with an
// error such as ErrExceedsLimit, ErrUnavailable under the policy FailClosed, or ErrMisconfigured. The call then returns
// no error. It still returns a *cogwheel.InvalidError, ErrClosed, and the error of its own context. A request that
// the limit grants takes its permits, once; one that it would deny takes none.
//
// Wait, WaitN, WaitFunc and Reserve ask once, as AllowN does: none of them waits for permits, stands in line, or
// returns a delay. Hooks and Stats have the decision of the limit: see Event.Shadow and Stats.ShadowDenied. Of the
// parts of an All, all have the option or none.
func WithShadow() LimiterOption {
	return limiterOptionFunc(func(c *limiterConfig) error {
		c.shadow = true
		return nil
	})
}

func newConfig(opts []Option) (config, error) {
	c := config{
		Options: client.Options{
			Package: argument, Logger: slog.Default(), Endless: "calls to a Redis that hangs would never end",
		},
		failures: 3, probe: outage.DefaultProbe, timeout: defaultTimeout,
	}
	err := conventions.Apply(argument, &c, opts, Option.apply)
	c.SetDefaultWheel()
	return c, err
}
