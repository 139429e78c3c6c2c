package semaphore

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
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
	wheel    *wheel.Wheel
	logger   *slog.Logger
	hooks    Hooks
	poll     time.Duration
	channels waitqueue.Sharding
	idle     time.Duration
}

type countingConfig struct{ max int64 }

type semaphoreConfig struct {
	lease time.Duration
	renew bool
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
	return option(func(c *config) error {
		if w == nil {
			return argument.Nil("WithWheel")
		}
		c.wheel = w
		return nil
	})
}

// WithLogger sets the logger that reports lost permits, failed renewals and failed releases. The default is
// slog.Default().
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) error {
		if l == nil {
			return argument.Nil("WithLogger")
		}
		c.logger = l
		return nil
	})
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
	return option(func(c *config) error {
		if d < 10*time.Millisecond || d > time.Hour {
			return argument.Error("WithPoll", d, "must be 10ms to 1h")
		}
		c.poll = d
		return nil
	})
}

// WithShardedChannels sets whether waiters in a cluster are woken by SPUBLISH. By default they are if the
// cluster supports sharded channels, as in Redisson since 3.22. Services that share semaphores must use the
// same channels to wake each other; otherwise a waiter asks again when a lease or the semaphore ends, and at
// its poll. Outside of clusters the option has no effect.
func WithShardedChannels(on bool) Option {
	return option(func(c *config) error {
		c.channels = waitqueue.Ordinary
		if on {
			c.channels = waitqueue.Sharded
		}
		return nil
	})
}

// WithIdleExpiry makes semaphores expire after d without use: at least three poll intervals and a second (see
// WithPoll), at most 365 days. It is meant for names that are made at run time. By default semaphores do not
// expire.
//
// A semaphore is in use while a permit is held or waited for. Each acquisition, release, renewal and change
// of its permits is a use; reading is not. All keys of a semaphore expire together; then its permits are not
// set, and Acquire fails with ErrNotSet. A Semaphore expires d after its last lease has ended, also if the
// holder died. A CountingSemaphore does not expire while fewer permits are free than were set and added;
// permits lost with a process keep it until Delete.
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
		c.lease = d // Client.checkLease has the range
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
	c := config{logger: slog.Default(), poll: DefaultPoll}
	err := applyAll(&c, opts, Option.apply)
	if least := fairLiveness(c.poll); err == nil && c.idle != 0 && c.idle < least {
		reason := fmt.Sprintf("must be %v (three polls and a second) to 8760h", least)
		err = argument.Error("WithIdleExpiry", c.idle, reason)
	}
	if c.wheel == nil && err == nil {
		c.wheel = wheel.Default()
	}
	return c, err
}

func newCountingConfig(opts []CountingOption) (c countingConfig, err error) {
	err = applyAll(&c, opts, CountingOption.applyCounting)
	return c, err
}

func newSemaphoreConfig(opts []SemaphoreOption) (semaphoreConfig, error) {
	c := semaphoreConfig{lease: DefaultLease, renew: true}
	err := applyAll(&c, opts, SemaphoreOption.applySemaphore)
	return c, err
}

// applyAll applies options in their order, up to the first that fails.
func applyAll[C, O any](c *C, opts []O, apply func(O, *C) error) error {
	for i, o := range opts {
		if any(o) == nil {
			return argument.Error("option", i, "is nil")
		}
		if err := apply(o, c); err != nil {
			return err
		}
	}
	return nil
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

// checkLease refuses a lease out of range, whose lower end depends on the wheel.
func (c *Client) checkLease(field string, lease time.Duration) error {
	if least := c.renewer.MinTTL(); lease < least || lease > renewal.MaxTTL {
		return argument.Error(field, lease, fmt.Sprintf("must be %v (ten ticks of the wheel) to 8760h", least))
	}
	return nil
}
