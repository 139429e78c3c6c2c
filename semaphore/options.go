package semaphore

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/client"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// DefaultLease is the lease of permits without WithLease.
const DefaultLease = 30 * time.Second

// DefaultPoll is the poll interval of a Client without WithPoll.
const DefaultPoll = 5 * time.Second

// MaxPermits is the largest number of permits, the largest int of Java.
const MaxPermits = 1<<31 - 1

// MaxGrant is the largest number of permits in one grant of a Semaphore, each of which has an id.
const MaxGrant = 10_000

// Option configures New. If an option is given twice, the last one counts.
type Option interface{ apply(*config) error }

// CountingOption configures a CountingSemaphore. If an option is given twice, the last one counts.
type CountingOption interface{ applyCounting(*countingConfig) error }

// SemaphoreOption configures a Semaphore. If an option is given twice, the last one counts.
//
//nolint:revive // Option is the client's
type SemaphoreOption interface{ applySemaphore(*semaphoreConfig) error }

type config struct {
	client.Options
	hooks Hooks
	idle  time.Duration
}

type countingConfig struct{ max int64 }

type semaphoreConfig struct {
	lease   time.Duration
	renew   bool
	permits int64 // to set if none is set; 0 for none
}

type option func(*config) error

func (o option) apply(c *config) error { return o(c) }

type countingOption func(*countingConfig) error

func (o countingOption) applyCounting(c *countingConfig) error { return o(c) }

type semaphoreOption func(*semaphoreConfig) error

func (o semaphoreOption) applySemaphore(c *semaphoreConfig) error { return o(c) }

// WithWheel sets the wheel that times renewals, deadlines and waits. The default is wheel.Default(). The
// caller must keep it running until Close has returned: when it is stopped, grants are lost with an error
// that matches renewal.ErrUnwatched too, and waiting calls return an error that matches wheel.ErrStopped.
func WithWheel(w *wheel.Wheel) Option {
	return option(func(c *config) error { return conventions.Set(argument, "WithWheel", &c.Wheel, w) })
}

// WithLogger sets the logger that reports lost permits, failed renewals and failed releases. The default is
// slog.Default() at the time of New.
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) error { return conventions.Set(argument, "WithLogger", &c.Logger, l) })
}

// WithHooks sets functions that the Client calls when something happens to permits. By default it calls none.
func WithHooks(h Hooks) Option {
	return option(func(c *config) error {
		c.hooks = h
		return nil
	})
}

// WithPoll sets the longest time between two queries of a waiter that no message has woken: 10 ms to 1 h, by
// default 5 s. Each pause is drawn at random from d/5 to d. Messages wake waiters; polling covers lost
// messages.
func WithPoll(d time.Duration) Option {
	return option(func(c *config) error { return c.SetPoll(d) })
}

// WithShardedChannels sets whether waiters in a cluster are woken by SPUBLISH. By default they are if the
// cluster supports sharded channels, as in Redisson since 3.22. Services that share semaphores must use the
// same channels to wake each other; otherwise a waiter asks again when a lease or the semaphore ends, and at
// its poll. Outside of clusters the option has no effect.
func WithShardedChannels(on bool) Option {
	return option(func(c *config) error { return c.SetSharded(on) })
}

// WithSharedScripts sets whether calls about several semaphores share a script, so that one script names the
// keys of all of them. The default is true: calls for one permit of a Semaphore, or for one request or release of a
// CountingSemaphore, share scripts if the client is for a single server and CLIENT INFO shows that there is no proxy in
// between. The Client sends it in the background, until it has an answer. With false, it does not send it, and each
// semaphore has a script to itself. Calls still share pipelines.
func WithSharedScripts(on bool) Option {
	return option(func(c *config) error { return c.SetSharedScripts(on) })
}

// WithIdleExpiry makes semaphores expire after d without use: at least three poll intervals and a second (see
// WithPoll), at most 365 days. It is meant for names that are made at run time. By default semaphores do not
// expire.
//
// A semaphore is in use while a permit is held or waited for. Each acquisition, release, renewal and change
// of its permits is a use; reading is not. All keys of a semaphore expire together; then its permits are not
// set, and Acquire fails with ErrNotSet or, if the semaphore names a number of permits, sets them again. A
// Semaphore expires d after its last lease has ended, also if the holder died. A CountingSemaphore does not
// expire while fewer permits are free than were set and added; permits lost with a process keep it until Delete.
//
// The option applies to all semaphores of the Client, from their next use on; to a CountingSemaphore only if
// its permits were set by a Client with the option. Every Client that uses a semaphore needs the option: a
// Client without it, or a service in Java, does not defer the expiry while it holds permits. Semaphores that
// must not expire need a Client without it.
func WithIdleExpiry(d time.Duration) Option {
	return option(func(c *config) error {
		c.idle = d // newConfig checks the lower end, which depends on the poll
		if d <= 0 || d > renewal.MaxTTL {
			return argument.Error("WithIdleExpiry", d, "must be three polls and a second to 8760h")
		}
		return nil
	})
}

// WithMax sets the maximum number of free permits of a CountingSemaphore, 1 to MaxPermits. A Release that
// would exceed it fails with ErrOverRelease, and an Acquire of more permits fails with ErrExceedsPermits. By
// default there is no maximum, as in Redisson. The maximum belongs to this CountingSemaphore value: Redis
// does not store it, other values may exceed it, and so may TrySetPermits and AddPermits.
func WithMax(n int64) CountingOption {
	return countingOption(func(c *countingConfig) error {
		if n < 1 || n > MaxPermits {
			return argument.Error("WithMax", n, "must be 1 to 2147483647")
		}
		c.max = n
		return nil
	})
}

// WithLease sets how long Redis keeps permits without a renewal, which is also how long waiters wait for a
// holder that died. The range is ten ticks of the Client's wheel (10 ms on the default one) to 365 days. The
// default is 30 s. Redis counts in milliseconds; fractions are rounded up.
func WithLease(d time.Duration) SemaphoreOption {
	return semaphoreOption(func(c *semaphoreConfig) error {
		c.lease = d // CheckLease checks the range
		return nil
	})
}

// WithoutRenewal makes permits end with their first lease, as in Redisson, or with that of Grant.Extend.
// Until then only Extend and Release notice their removal from Redis. By default they are renewed at least
// every third of the lease.
func WithoutRenewal() SemaphoreOption {
	return semaphoreOption(func(c *semaphoreConfig) error {
		c.renew = false
		return nil
	})
}

func newConfig(opts []Option) (config, error) {
	c := config{Options: client.Options{
		Package: argument, Logger: slog.Default(), Poll: DefaultPoll,
		Endless: "calls would not end while Redis hangs",
	}}
	err := conventions.Apply(argument, &c, opts, Option.apply)
	if least := liveness(c.Poll); err == nil && c.idle != 0 && c.idle < least {
		reason := fmt.Sprintf("must be %v (three polls and a second) to 8760h", least)
		err = argument.Error("WithIdleExpiry", c.idle, reason)
	}
	c.SetDefaultWheel()
	return c, err
}

func newCountingConfig(opts []CountingOption) (c countingConfig, err error) {
	err = conventions.Apply(argument, &c, opts, CountingOption.applyCounting)
	return c, err
}

func newSemaphoreConfig(permits int64, opts []SemaphoreOption) (semaphoreConfig, error) {
	c := semaphoreConfig{permits: permits, lease: DefaultLease, renew: true}
	if permits < 0 || permits > MaxPermits {
		return c, argument.Error("permits", permits, "must be 0 to 2147483647")
	}
	err := conventions.Apply(argument, &c, opts, SemaphoreOption.applySemaphore)
	return c, err
}

// checkCount refuses a number of permits out of range.
func checkCount(n, least, most int64) error {
	if n < least || n > most {
		return argument.Error("n", n, fmt.Sprintf("must be %d to %d", least, most))
	}
	return nil
}

// checkLease refuses a lease that Redis cannot keep.
func checkLease(field string, d time.Duration) error {
	if d < renewal.MinTTL || d > renewal.MaxTTL {
		return argument.Error(field, d, "must be 1ms to 8760h")
	}
	return nil
}
