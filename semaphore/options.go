package semaphore

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// DefaultLease is how long permits outlive a holder that died, unless WithLease says otherwise.
const DefaultLease = 30 * time.Second

// DefaultPoll is the longest time for which a lost message can delay a waiter, unless WithPoll says otherwise.
const DefaultPoll = 5 * time.Second

// MaxPermits bounds the number of permits: the largest integer that Java and Lua both count exactly.
const MaxPermits = 1<<31 - 1

// MaxGrant bounds the permits of one grant of a Leased, each of which has an id of its own.
const MaxGrant = 10_000

// Option configures New. Of one that is given twice the last counts, as of those of a semaphore.
type Option interface{ apply(*config) error }

// SemaphoreOption configures a Semaphore.
type SemaphoreOption interface{ applySemaphore(*semaphoreConfig) error } //nolint:revive // Option is the client's

// LeasedOption configures a Leased.
type LeasedOption interface{ applyLeased(*leasedConfig) error }

type config struct {
	wheel    *wheel.Wheel
	logger   *slog.Logger
	poll     time.Duration
	channels waitqueue.Sharding
}

type semaphoreConfig struct{ max int64 }

type leasedConfig struct {
	lease time.Duration
	renew bool
}

type option func(*config) error

func (o option) apply(c *config) error { return o(c) }

type semaphoreOption func(*semaphoreConfig) error

func (o semaphoreOption) applySemaphore(c *semaphoreConfig) error { return o(c) }

type leasedOption func(*leasedConfig) error

func (o leasedOption) applyLeased(c *leasedConfig) error { return o(c) }

// WithWheel sets the wheel on which renewals, deadlines and waits are entries. The default is wheel.Default().
// The wheel must run until the Client is closed.
func WithWheel(w *wheel.Wheel) Option {
	return option(func(c *config) error {
		if w == nil {
			return argument.Nil("WithWheel")
		}
		c.wheel = w
		return nil
	})
}

// WithLogger sets where lost permits, failing renewals and failing releases are reported. The default is slog.Default().
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) error {
		if l == nil {
			return argument.Nil("WithLogger")
		}
		c.logger = l
		return nil
	})
}

// WithPoll sets the longest pause after which waiters look again although no message came: 10 ms to 1 h, default 5 s. Each pause
// is drawn from a fifth of it to the whole. Messages are the rule; the poll is for those that were lost.
func WithPoll(d time.Duration) Option {
	return option(func(c *config) error {
		if d < 10*time.Millisecond || d > time.Hour {
			return argument.Error("WithPoll", d, "must be 10ms to 1h")
		}
		c.poll = d
		return nil
	})
}

// WithShardedChannels sets whether those who wait in a cluster are woken by SPUBLISH. The default is to do so if the cluster has sharded
// channels, as Redisson does since 3.22. Services that share semaphores must agree on it to wake each other; if they do not,
// a waiter looks again when a lease ends and at the latest at its poll. It has no effect outside of clusters.
func WithShardedChannels(on bool) Option {
	return option(func(c *config) error {
		c.channels = waitqueue.Ordinary
		if on {
			c.channels = waitqueue.Sharded
		}
		return nil
	})
}

// WithMax refuses a Release that would leave more than n permits, and an Acquire of more than n: 1 to MaxPermits. The
// default is no bound, as in Redisson: whoever releases without having acquired adds permits. The bound is this
// handle's: it is not stored, and others may exceed it.
func WithMax(n int64) SemaphoreOption {
	return semaphoreOption(func(c *semaphoreConfig) error {
		if n < 1 || n > MaxPermits {
			return argument.Error("WithMax", n, "must be 1 to 2147483647")
		}
		c.max = n
		return nil
	})
}

// WithLease sets how long permits last in Redis without a renewal: ten ticks of the Client's wheel, 10 ms on the default one, to 365
// days, default 30 s. It bounds how long others wait for a holder that died. Redis counts in milliseconds; fractions are rounded up
// there. The end of a shorter lease could not be announced in time.
func WithLease(d time.Duration) LeasedOption {
	return leasedOption(func(c *leasedConfig) error {
		if err := checkLease("WithLease", d); err != nil {
			return err
		}
		c.lease = d
		return nil
	})
}

// WithoutRenewal lets permits end with their first lease, as in Redisson. The default is to renew every third of the lease.
func WithoutRenewal() LeasedOption {
	return leasedOption(func(c *leasedConfig) error {
		c.renew = false
		return nil
	})
}

func checkLease(field string, d time.Duration) error {
	if d < renewal.MinTTL || d > renewal.MaxTTL {
		return argument.Error(field, d, "must be 1ms to 8760h")
	}
	return nil
}

// checkLease refuses a lease too short for the wheel.
func (c *Client) checkLease(field string, lease time.Duration) error {
	if least := c.renewer.MinTTL(); lease < least {
		return argument.Error(field, lease, fmt.Sprintf("must be %v, ten ticks of the wheel, to 8760h", least))
	}
	return nil
}

func newConfig(opts []Option) (config, error) {
	c := config{logger: slog.Default(), poll: DefaultPoll}
	for i, o := range opts {
		if o == nil {
			return c, argument.Error("option", i, "is nil")
		}
		if err := o.apply(&c); err != nil {
			return c, err
		}
	}
	if c.wheel == nil {
		c.wheel = wheel.Default()
	}
	return c, nil
}

func newSemaphoreConfig(opts []SemaphoreOption) (c semaphoreConfig, err error) {
	for i, o := range opts {
		if o == nil {
			return c, argument.Error("option", i, "is nil")
		}
		if err := o.applySemaphore(&c); err != nil {
			return c, err
		}
	}
	return c, nil
}

func newLeasedConfig(opts []LeasedOption) (leasedConfig, error) {
	c := leasedConfig{lease: DefaultLease, renew: true}
	for i, o := range opts {
		if o == nil {
			return c, argument.Error("option", i, "is nil")
		}
		if err := o.applyLeased(&c); err != nil {
			return c, err
		}
	}
	return c, nil
}
