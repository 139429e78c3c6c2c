package redislock

import (
	"fmt"
	"log/slog"
	"net/url"
	"time"
	"unicode/utf8"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// DefaultLease is how long a lock outlives a holder that died, unless WithLease says otherwise.
const DefaultLease = 30 * time.Second

// Option configures New. Of one that is given twice the last counts.
type Option interface{ apply(*config) error }

// LockOption configures one lock, or by WithLockDefaults all locks of a Client. Of one that is given twice the last counts.
type LockOption interface{ applyLock(*lockConfig) error }

type config struct {
	wheel    *wheel.Wheel
	logger   *slog.Logger
	hooks    Hooks
	channels waitqueue.Sharding
	poll     time.Duration
	locks    []LockOption // defaults of all locks
}

type lockConfig struct {
	lease    time.Duration
	renew    bool
	fenced   bool
	replicas replicas
	maxHold  time.Duration // 0: none
	handoff  handoff
	metadata string // as it stands in the ids of holders
	label    string // tells configurations apart; empty for the default
}

// replicas is how many replicas must have confirmed an acquisition within how long.
type replicas struct {
	n       int
	timeout time.Duration
}

type option func(*config) error

func (o option) apply(c *config) error { return o(c) }

type lockOption func(*lockConfig) error

func (o lockOption) applyLock(c *lockConfig) error { return o(c) }

// WithWheel sets the wheel on which renewals, deadlines and waits are entries. The default is wheel.Default().
// The wheel must run until the Client is closed. Leases last at least ten of its ticks.
func WithWheel(w *wheel.Wheel) Option {
	return option(func(c *config) error {
		if w == nil {
			return argument.Nil("WithWheel")
		}
		c.wheel = w
		return nil
	})
}

// WithLogger sets where lost locks, failing renewals and failing releases are reported. The default is slog.Default().
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) error {
		if l == nil {
			return argument.Nil("WithLogger")
		}
		c.logger = l
		return nil
	})
}

// WithHooks sets functions that are told what happens to locks. The default is none.
func WithHooks(h Hooks) Option {
	return option(func(c *config) error {
		c.hooks = h
		return nil
	})
}

// WithShardedChannels sets whether those who wait in a cluster are woken by SPUBLISH. The default is to do so if the cluster has sharded
// channels, as Redisson does since 3.22. Services that lock the same names must agree on it to wake each other; if they do not,
// a waiter looks again when the lease ends and every few seconds. It has no effect outside of clusters.
func WithShardedChannels(on bool) Option {
	return option(func(c *config) error {
		c.channels = waitqueue.Ordinary
		if on {
			c.channels = waitqueue.Sharded
		}
		return nil
	})
}

// DefaultPoll is the longest time for which a lost message can delay a waiter, unless WithPoll says otherwise.
const DefaultPoll = 5 * time.Second

// WithPoll sets the longest pause after which waiters look again although no message came: 10 ms to 1 h, default 5 s. Each pause is drawn
// from a fifth of it to the whole. Messages are the rule; the poll is for those that were lost. A waiter of a FairMutex that was not
// heard of for three polls is passed over.
func WithPoll(d time.Duration) Option {
	return option(func(c *config) error {
		if d < 10*time.Millisecond || d > time.Hour {
			return argument.Error("WithPoll", d, "must be 10ms to 1h")
		}
		c.poll = d
		return nil
	})
}

// WithLockDefaults sets the options of every lock that is made without them, and spares making them for each: New refuses a bad one. Those
// that a lock is made with come on top.
func WithLockDefaults(opts ...LockOption) Option {
	return option(func(c *config) error {
		c.locks = opts
		return nil
	})
}

// WithLease sets how long the lock lasts in Redis without a renewal: ten ticks of the Client's wheel, 10 ms on the default one, to 365
// days, default 30 s. It bounds how long others wait for a holder that died. A lease well above the round trip to Redis is needed for
// the lock to be useful: an acquisition whose reply took longer is given back. Redis counts in milliseconds; fractions are rounded
// up there. The end of a shorter lease could not be announced in time.
func WithLease(d time.Duration) LockOption {
	return lockOption(func(c *lockConfig) error {
		if d < renewal.MinTTL || d > renewal.MaxTTL {
			return argument.Error("WithLease", d, "must be 1ms to 8760h")
		}
		c.lease = d
		return nil
	})
}

// WithoutRenewal lets the lock end with its first lease: no watchdog prolongs it. The default is to renew every third of the lease.
func WithoutRenewal() LockOption {
	return lockOption(func(c *lockConfig) error {
		c.renew = false
		return nil
	})
}

// WithFencing gives each Lock a Token that is higher than those of all earlier holds of the name, for resources that refuse a
// writer with a lower token than they have seen. It rises across expiry, ForceUnlock and the loss of Redis's data as long as the
// server's clock is not set back across one. All who lock the name should use it. The counter is Redisson's, which Java's
// RFencedLock increases; it expires a day after the last fenced lock of a Go service.
func WithFencing() LockOption {
	return lockOption(func(c *lockConfig) error {
		c.fenced = true
		return nil
	})
}

// WithReplicas makes an acquisition succeed only if n replicas, 1 to 100, have confirmed it within timeout, 1 ms to 1 minute. Otherwise
// the lock is released and the call fails with ErrReplicas. It makes the loss of a lock in a failover less likely and
// cannot rule it out: the replica that is promoted need not be one that confirmed. It costs a second round trip.
func WithReplicas(n int, timeout time.Duration) LockOption {
	return lockOption(func(c *lockConfig) error {
		if n < 1 || n > 100 {
			return argument.Error("WithReplicas", n, "must be 1 to 100 replicas")
		}
		if timeout < time.Millisecond || timeout > time.Minute {
			return argument.Error("WithReplicas", timeout, "the timeout must be 1ms to 1m")
		}
		c.replicas = replicas{n, timeout}
		return nil
	})
}

// WithMaxHold ends the lock after d, 1 ms to 365 days, however alive its holder is: against one that forgot to unlock, for whom the
// watchdog would renew it for ever. The Lock is then lost, with the cause ErrMaxHold, and free an eighth of its lease later, so that its
// holder has time to stop. The default is no limit.
func WithMaxHold(d time.Duration) LockOption {
	return lockOption(func(c *lockConfig) error {
		if d < renewal.MinTTL || d > renewal.MaxTTL {
			return argument.Error("WithMaxHold", d, "must be 1ms to 8760h")
		}
		c.maxHold = d
		return nil
	})
}

// WithHandoff bounds how often and for how long a lock that was taken from Redis is passed on among the waiting callers of one process
// before processes that wait elsewhere get their chance: at most maxCount times, 0 to 10000, and not later than maxTime after it
// was taken, up to 1 minute. The default is 100 times and 20 ms; 0 never passes it on. Nor is it passed on after an eighth of its lease.
func WithHandoff(maxCount int, maxTime time.Duration) LockOption {
	return lockOption(func(c *lockConfig) error {
		if maxCount < 0 || maxCount > 10000 {
			return argument.Error("WithHandoff", maxCount, "must be 0 to 10000 times")
		}
		if maxTime < 0 || maxTime > time.Minute {
			return argument.Error("WithHandoff", maxTime, "the time must be 0 to 1m")
		}
		c.handoff = handoff{maxCount, maxTime}
		return nil
	})
}

// maxMetadata is the longest text of WithMetadata, in bytes.
const maxMetadata = 256

// WithMetadata makes a text of at most 256 bytes of UTF-8 part of the lock in Redis while it is held, such as a host and a job:
// State shows it to whoever wonders who has the lock. It is sent with every call about the lock, so keep it short.
func WithMetadata(text string) LockOption {
	return lockOption(func(c *lockConfig) error {
		if text == "" || len(text) > maxMetadata || !utf8.ValidString(text) {
			return argument.Error("WithMetadata", scripts.Quote(text), "must be 1 to 256 bytes of UTF-8")
		}
		c.metadata = metadataMark + url.QueryEscape(text)
		return nil
	})
}

// checkLease refuses a lease too short for the wheel.
func (c *Client) checkLease(lease time.Duration) error {
	if least := c.renewer.MinTTL(); lease < least {
		return argument.Error("WithLease", lease, fmt.Sprintf("must be %v, ten ticks of the wheel, to 8760h", least))
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

// setLockDefaults takes over what WithLockDefaults says.
func (c *Client) setLockDefaults(opts []LockOption) error {
	c.defaults = &lockConfig{lease: DefaultLease, renew: true, handoff: handoff{100, 20 * time.Millisecond}}
	if len(opts) == 0 {
		return nil
	}
	config, err := c.lockConfig(opts)
	if err != nil {
		return err
	}
	config.label = ""
	c.defaults = config
	return nil
}

// lockConfig returns what the options make of the defaults. Locks that are made one after the other with the same options share it.
func (c *Client) lockConfig(opts []LockOption) (*lockConfig, error) {
	if len(opts) == 0 {
		return c.defaults, c.checkLease(c.defaults.lease)
	}
	made := *c.defaults
	for i, opt := range opts {
		if opt == nil {
			return nil, argument.Error("option", i, "is nil")
		}
		if err := opt.applyLock(&made); err != nil {
			return nil, err
		}
	}
	if err := c.checkLease(made.lease); err != nil {
		return nil, err
	}
	if made == *c.defaults {
		return c.defaults, nil
	}
	made.label = made.describe()
	if last := c.config.Load(); last != nil && *last == made {
		return last, nil
	}
	c.config.Store(&made)
	return &made, nil
}
