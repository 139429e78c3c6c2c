package redislock

import (
	"fmt"
	"log/slog"
	"net/url"
	"time"
	"unicode/utf8"
	"unique"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// DefaultLease is the lease of a lock without WithLease.
const DefaultLease = 30 * time.Second

// Option configures New. If an option is given twice, the last one counts.
type Option interface{ apply(*config) error }

// LockOption configures a lock, or with WithLockDefaults all locks of a Client. If an option is given twice,
// the last one counts.
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

	sharedFence bool // the token counter does not expire
}

// sharedConfig is the configuration of all locks that were made with the same options. It never changes.
type sharedConfig struct {
	lockConfig
	handle unique.Handle[lockConfig]
	millis any // of the lease, rounded up, as an argument of scripts
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

// WithWheel sets the wheel on which renewals, deadlines and waits are entries. The default is
// wheel.Default(). A lease below ten of its ticks is refused. The caller keeps it running until Close has
// returned: when it is stopped, locks are lost with the cause renewal.ErrUnwatched, and waiting calls return
// an error that matches wheel.ErrStopped.
func WithWheel(w *wheel.Wheel) Option {
	return option(func(c *config) error {
		if w == nil {
			return argument.Nil("WithWheel")
		}
		c.wheel = w
		return nil
	})
}

// WithLogger sets where lost locks, failing renewals and failing releases are reported. The default is
// slog.Default(), as it is when the Client is made.
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) error {
		if l == nil {
			return argument.Nil("WithLogger")
		}
		c.logger = l
		return nil
	})
}

// WithHooks sets functions that are called for what happens to locks. The default is none.
func WithHooks(h Hooks) Option {
	return option(func(c *config) error {
		c.hooks = h
		return nil
	})
}

// WithShardedChannels sets whether releases in a cluster are published by SPUBLISH. The default is to do so
// if the cluster has sharded channels, as Redisson does since 3.22. Services that lock the same names must
// agree on it to wake each other; if they do not, a waiter asks again when the lease ends and at its poll. It
// has no effect outside of clusters.
func WithShardedChannels(on bool) Option {
	return option(func(c *config) error {
		c.channels = waitqueue.Ordinary
		if on {
			c.channels = waitqueue.Sharded
		}
		return nil
	})
}

// DefaultPoll is the poll interval of a Client without WithPoll.
const DefaultPoll = 5 * time.Second

// WithPoll sets the longest pause after which a waiter asks again although no message came: 10 ms to 1 h,
// default 5 s. Each pause is drawn at random from a fifth of it to the whole. Waiters are woken by messages
// as a rule; the poll makes up for lost ones. A waiter of a FairMutex that has not asked for three of its
// polls is skipped.
func WithPoll(d time.Duration) Option {
	return option(func(c *config) error {
		if d < 10*time.Millisecond || d > time.Hour {
			return argument.Error("WithPoll", d, "must be 10ms to 1h")
		}
		c.poll = d
		return nil
	})
}

// WithLockDefaults sets options for all locks of the Client, in place of those of an earlier
// WithLockDefaults. New returns the error of a bad one, and a lock costs no allocations for them. The options
// of a lock are applied after the defaults.
func WithLockDefaults(opts ...LockOption) Option {
	return option(func(c *config) error {
		c.locks = opts
		return nil
	})
}

// WithLease sets how long the lock lasts in Redis without a renewal. The range is ten ticks of the Client's
// wheel, 10 ms on the default one, to 365 days. The default is 30 s. The end of a shorter lease could not be
// announced in time. The lease bounds how long others wait for a holder that died. It should be well above
// the round trip to Redis: a lock whose grant takes longer than the lease to arrive is released and asked for
// again; after three times the call fails, unless it has been waiting. Redis counts in milliseconds;
// fractions are rounded up.
func WithLease(d time.Duration) LockOption {
	return lockOption(func(c *lockConfig) error {
		c.lease = d // Client.checkLease has the range
		return nil
	})
}

// WithoutRenewal lets the lock end with its first lease: no watchdog renews it. The default is to renew it
// every third of the lease.
func WithoutRenewal() LockOption {
	return lockOption(func(c *lockConfig) error {
		c.renew = false
		return nil
	})
}

// WithFencing gives each Lock a Token that is higher than the tokens of all earlier holds of the name, for
// resources that refuse a writer with a lower token than they have seen. Tokens rise across expiry,
// ForceUnlock and the loss of Redis's data, as long as the server's clock is not set back across such a loss.
// All users of the name should use it.
//
// The counter is the one of Redisson's RFencedLock. It expires a day after the last fenced acquisition from
// Redis, unless Java made it: then it has no expiry and gets none. Services in Java do not renew the expiry
// of a counter that Go made, so their tokens would fall once it ends: for a name that both use, pass
// SharedWithJava.
func WithFencing(opts ...FencingOption) LockOption {
	return lockOption(func(c *lockConfig) error {
		c.fenced, c.sharedFence = true, false
		for i, o := range opts {
			if o == nil {
				return argument.Error("WithFencing", i, "the option is nil")
			}
			o.applyFencing(c)
		}
		return nil
	})
}

// FencingOption configures WithFencing.
type FencingOption interface{ applyFencing(*lockConfig) }

type fencingOption func(*lockConfig)

func (o fencingOption) applyFencing(c *lockConfig) { o(c) }

// SharedWithJava keeps the token counter of the name in Redis for ever, for names that services in Java lock by
// Redisson's RFencedLock: their tokens rise from the counter alone. All Go services of the name should pass it. The
// default is to keep the counter for a day, so that names which are used once leave no key.
func SharedWithJava() FencingOption {
	return fencingOption(func(c *lockConfig) { c.sharedFence = true })
}

// WithReplicas makes an acquisition from Redis succeed only if n replicas of its master, 1 to 100, have
// confirmed it within timeout, 1 ms to 1 minute. Otherwise the lock is released and the call fails with
// ErrReplicas; a Lock that has been waiting asks again instead. Renewals and hand-overs are not confirmed.
// This makes the loss of a lock in a failover less likely. It cannot rule it out: the replica that is
// promoted need not be one that confirmed. It costs a second round trip.
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

// WithMaxHold ends the lock d after its acquisition, 1 ms to 365 days, even if its holder is alive: it limits
// the damage of a holder that forgot to unlock, whose lock the watchdog would renew without end. An Owner
// that re-enters the hold does not postpone it. The Lock is then lost, with the cause ErrMaxHold, and free an
// eighth of its lease later, so that its holder has time to stop. The default is no limit.
func WithMaxHold(d time.Duration) LockOption {
	return lockOption(func(c *lockConfig) error {
		if d < renewal.MinTTL || d > renewal.MaxTTL {
			return argument.Error("WithMaxHold", d, "must be 1ms to 8760h")
		}
		c.maxHold = d
		return nil
	})
}

// maxHandoffs bounds the count of WithHandoff.
const maxHandoffs = 10_000

// WithHandoff bounds how often and for how long a lock that was taken from Redis is handed over among the
// waiting callers of one process before it is released in Redis, where all processes compete for it: at most
// maxCount times, and not later than maxTime after Redis was asked for it. The ranges are 0 to 10000 times
// and 0 to 1 minute; the defaults are 100 times and 20 ms. 0 times means never. Nor is a lock handed over
// once an eighth of its lease has passed.
func WithHandoff(maxCount int, maxTime time.Duration) LockOption {
	return lockOption(func(c *lockConfig) error {
		if maxCount < 0 || maxCount > maxHandoffs {
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

// WithMetadata stores a text of 1 to 256 bytes of UTF-8 with the lock in Redis while it is held, such as a
// host and a job. State shows it. The text is sent with every call about the lock, so keep it short.
func WithMetadata(text string) LockOption {
	return lockOption(func(c *lockConfig) error {
		if text == "" || len(text) > maxMetadata || !utf8.ValidString(text) {
			return argument.Error("WithMetadata", scripts.Quote(text), "must be 1 to 256 bytes of UTF-8")
		}
		c.metadata = metadataMark + url.QueryEscape(text)
		return nil
	})
}

// checkLease refuses a lease out of range, whose lower end depends on the wheel.
func (c *Client) checkLease(lease time.Duration) error {
	if least := c.renewer.MinTTL(); lease < least || lease > renewal.MaxTTL {
		return argument.Error("WithLease", lease, fmt.Sprintf("must be %v (ten ticks of the wheel) to 8760h", least))
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

// setLockDefaults applies WithLockDefaults.
func (c *Client) setLockDefaults(opts []LockOption) (err error) {
	c.defaults = share(lockConfig{lease: DefaultLease, renew: true, handoff: handoff{100, 20 * time.Millisecond}})
	if len(opts) > 0 {
		c.defaults, err = c.lockConfig(opts)
	}
	return err
}

func share(c lockConfig) *sharedConfig {
	return &sharedConfig{lockConfig: c, handle: unique.Make(c), millis: redisconn.Millis(c.lease)}
}

// lockConfig applies the options to the defaults. Locks that are made one after the other with the same
// options share the result.
func (c *Client) lockConfig(opts []LockOption) (*sharedConfig, error) {
	if len(opts) == 0 {
		return c.defaults, c.checkLease(c.defaults.lease)
	}
	made := c.defaults.lockConfig
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
	if made == c.defaults.lockConfig {
		return c.defaults, nil
	}
	if last := c.lastConfig.Load(); last != nil && last.lockConfig == made {
		return last, nil
	}
	config := share(made)
	c.lastConfig.Store(config)
	return config, nil
}
