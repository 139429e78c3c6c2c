package redislock

import (
	"log/slog"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// DefaultLease is how long a lock outlives a holder that died, unless WithLease says otherwise.
const DefaultLease = 30 * time.Second

// Option configures New.
type Option interface{ apply(*config) error }

// LockOption configures one lock.
type LockOption interface{ applyLock(*lockConfig) error }

type config struct {
	wheel  *wheel.Wheel
	logger *slog.Logger
	given  given
}

type lockConfig struct {
	lease time.Duration
	renew bool
	given given
}

// given refuses an option that occurs twice: which of the two was meant is not for us to guess.
type given []string

func (g *given) note(name string) error {
	if slices.Contains(*g, name) {
		return &InvalidError{Field: "option", Value: name, Reason: "given more than once"}
	}
	*g = append(*g, name)
	return nil
}

type option struct {
	name string
	set  func(*config) error
}

func (o option) apply(c *config) error {
	if err := c.given.note(o.name); err != nil {
		return err
	}
	return o.set(c)
}

type lockOption struct {
	name string
	set  func(*lockConfig) error
}

func (o lockOption) applyLock(c *lockConfig) error {
	if err := c.given.note(o.name); err != nil {
		return err
	}
	return o.set(c)
}

// WithWheel sets the wheel on which renewals, deadlines and waits are entries. The default is wheel.Default().
// The wheel must run until the Client is closed.
func WithWheel(w *wheel.Wheel) Option {
	return option{"WithWheel", func(c *config) error {
		if w == nil {
			return &InvalidError{Field: "WithWheel", Value: "nil", Reason: "must not be nil"}
		}
		c.wheel = w
		return nil
	}}
}

// WithLogger sets where lost locks, failing renewals and failing releases are reported. The default is nowhere.
func WithLogger(l *slog.Logger) Option {
	return option{"WithLogger", func(c *config) error {
		if l == nil {
			return &InvalidError{Field: "WithLogger", Value: "nil", Reason: "must not be nil"}
		}
		c.logger = l
		return nil
	}}
}

// WithLease sets how long the lock lasts in Redis without a renewal: 1 ms to 365 days, default 30 s. It bounds how long
// others wait for a holder that died. A lease well above the round trip to Redis is needed for the lock to be useful:
// an acquisition whose reply took longer is given back. Redis counts in milliseconds; fractions are rounded up there.
func WithLease(d time.Duration) LockOption {
	return lockOption{"WithLease", func(c *lockConfig) error {
		if d < renewal.MinTTL || d > renewal.MaxTTL {
			return &InvalidError{Field: "WithLease", Value: d, Reason: "must be 1ms to 8760h"}
		}
		c.lease = d
		return nil
	}}
}

// WithoutRenewal lets the lock end with its first lease: no watchdog prolongs it. The default is to renew every third of the lease.
func WithoutRenewal() LockOption {
	return lockOption{"WithoutRenewal", func(c *lockConfig) error {
		c.renew = false
		return nil
	}}
}

func newConfig(opts []Option) (config, error) {
	c := config{logger: slog.New(slog.DiscardHandler)}
	for i, o := range opts {
		if o == nil {
			return c, &InvalidError{Field: "option", Value: i, Reason: "is nil"}
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

func newLockConfig(opts []LockOption) (lockConfig, error) {
	c := lockConfig{lease: DefaultLease, renew: true}
	for i, o := range opts {
		if o == nil {
			return c, &InvalidError{Field: "option", Value: i, Reason: "is nil"}
		}
		if err := o.applyLock(&c); err != nil {
			return c, err
		}
	}
	return c, nil
}
