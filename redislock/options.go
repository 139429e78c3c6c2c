package redislock

import (
	"log/slog"
	"net/url"
	"time"
	"unicode/utf8"
	"unique"

	"github.com/cogwheel-go/cogwheel/internal/client"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// DefaultLease is the lease of a lock without WithLease.
const DefaultLease = 30 * time.Second

// Option configures New. If an option is given twice, the last one counts.
type Option interface{ apply(*config) error }

// LockOption configures one lock, or, in WithLockDefaults, all locks of a Client. If an option is given twice,
// the last one counts.
type LockOption interface{ applyLock(*lockConfig) error }

type config struct {
	client.Options
	hooks Hooks
	locks []LockOption // for all locks
}

type lockConfig struct {
	lease    time.Duration
	renew    bool
	fenced   bool
	replicas replicas
	maxHold  time.Duration // 0: none
	minHold  time.Duration // 0: none
	handoff  handoff
	metadata string // in the form of the ids of holders

	sharedFence bool // the token counter does not expire
	stringKey   bool // the key is a string, as that of other libraries
}

// firstLease is the lease that an acquisition asks for. Renewals ask for lease and never shorten it.
func (c *lockConfig) firstLease() time.Duration { return max(c.lease, c.minHold) }

// sharedConfig is the configuration of all locks of a Client with equal options. It never changes.
type sharedConfig struct {
	client *Client
	lockConfig
	err    error // for the name or an option of one Mutex; only the Client is set then
	handle unique.Handle[lockConfig]
	millis any // the first lease, rounded up, as an argument of scripts
}

// replicas is the number of replicas that must confirm an acquisition, and the time that they have.
type replicas struct {
	n       int
	timeout time.Duration
}

type option func(*config) error

func (o option) apply(c *config) error { return o(c) }

type lockOption func(*lockConfig) error

func (o lockOption) applyLock(c *lockConfig) error { return o(c) }

// WithWheel sets the wheel that times renewals, deadlines and waits. The default is wheel.Default(). A lease
// below ten of its ticks is refused. The caller must keep it running until Close has returned: when it is
// stopped, locks are lost with an error that matches renewal.ErrUnwatched too, and waiting calls return an
// error that matches wheel.ErrStopped.
func WithWheel(w *wheel.Wheel) Option {
	return option(func(c *config) error { return conventions.Set(argument, "WithWheel", &c.Wheel, w) })
}

// WithLogger sets the logger that reports lost locks, failed renewals and failed releases. The default is
// slog.Default() at the time of New.
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) error { return conventions.Set(argument, "WithLogger", &c.Logger, l) })
}

// WithHooks sets functions that the Client calls when something happens to a lock. By default it calls none.
func WithHooks(h Hooks) Option {
	return option(func(c *config) error {
		c.hooks = h
		return nil
	})
}

// WithShardedChannels sets whether releases in a cluster are published by SPUBLISH. By default they are if the
// cluster supports sharded channels, as in Redisson since 3.22. Services that share locks must use the same
// channels to wake each other; otherwise a waiter asks again when the lease ends, and at its poll. Outside of
// clusters the option has no effect.
func WithShardedChannels(on bool) Option {
	return option(func(c *config) error { return c.SetSharded(on) })
}

// WithSharedScripts sets whether calls about several locks share a script, so that one script names the keys
// of all of them. The default is true: plain locks and renewals share scripts if the client is for a single server
// and CLIENT INFO shows that there is no proxy in between. The Client sends it in the background, until it has an
// answer. With false, it does not send it, and each lock has a script to itself. Calls still share pipelines.
func WithSharedScripts(on bool) Option {
	return option(func(c *config) error { return c.SetSharedScripts(on) })
}

// DefaultPoll is the poll interval of a Client without WithPoll.
const DefaultPoll = 5 * time.Second

// WithPoll sets the longest time between two queries of a waiter that no message has woken: 10 ms to 1 h, by
// default 5 s. Each pause is drawn at random from d/5 to d. Messages wake waiters; polling covers lost
// messages. A FairMutex skips a waiter that has not asked for three of its poll intervals.
func WithPoll(d time.Duration) Option {
	return option(func(c *config) error { return c.SetPoll(d) })
}

// WithLockDefaults sets options for all locks of the Client. It replaces an earlier WithLockDefaults. The options of a
// lock are applied after the defaults: they can replace the value of a default, such as a lease, but not undo a default
// such as WithFencing, which makes the Client's MultiMutex fail as it would as an option. New returns the error of an
// invalid default. Defaults cost a lock no allocation.
func WithLockDefaults(opts ...LockOption) Option {
	return option(func(c *config) error {
		c.locks = opts
		return nil
	})
}

// WithLease sets how long Redis keeps the lock without a renewal, which is also how long waiters wait for a
// holder that died. The range is ten ticks of the Client's wheel (10 ms on the default one) to 365 days. The
// end of a shorter lease could not be announced in time. The default is 30 s. Redis counts in milliseconds;
// fractions are rounded up.
//
// The lease should be much longer than a round trip to Redis. If the reply that grants a lock takes longer than the
// lease, the lock is released and asked for again; after three such replies the call fails, with an error that matches
// none of this package's.
func WithLease(d time.Duration) LockOption {
	return lockOption(func(c *lockConfig) error {
		c.lease = d // CheckLease checks the range
		return nil
	})
}

// WithoutRenewal makes the lock end with its first lease, or with the lease of Lock.Extend. By default the
// watchdog renews it every third of the lease.
func WithoutRenewal() LockOption {
	return lockOption(func(c *lockConfig) error {
		c.renew = false
		return nil
	})
}

// WithFencing gives each Lock a Token that is higher than the tokens of all earlier holds of the name, for
// resources that refuse a writer with a lower token than they have seen. Tokens rise across expiry, ForceUnlock
// and the loss of Redis's data, as long as the server's clock is not set back across such a loss. All users of
// the name should use the option.
//
// Redis keeps the tokens in the counter of Redisson's RFencedLock. It expires a day after the last fenced
// acquisition from Redis. A counter that Java made has no expiry, and gets none. Java does not renew the expiry
// of a counter that Go made, so its tokens would fall when the counter expires: use WithJavaFencing for a name that
// both use.
func WithFencing() LockOption { return fencing(false) }

// WithJavaFencing is WithFencing for names that services in Java lock with Redisson's RFencedLock, whose tokens rise
// from the counter alone: Redis keeps the counter for ever. All Go services of the name should use it. With
// WithFencing the counter is kept for a day, so that names that are used once leave no key. Of the two options the
// last one counts, and a kind of lock that refuses one refuses both.
func WithJavaFencing() LockOption { return fencing(true) }

func fencing(shared bool) LockOption {
	return lockOption(func(c *lockConfig) error {
		c.fenced, c.sharedFence = true, shared
		return nil
	})
}

// WithReplicas makes an acquisition from Redis succeed only if n replicas of its master, 1 to 100, have
// confirmed it within timeout, 1 ms to 1 minute. Otherwise the lock is released and the call fails with
// ErrReplicas; a Lock that was waiting goes on waiting instead. Renewals and handoffs are not confirmed. The
// option costs a second round trip. It is refused for a client whose nodes are not known (see New).
//
// The option makes the loss of a lock in a failover less likely. It does not rule the loss out: the replica
// that is promoted may be one that did not confirm.
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

// WithMaxHold ends the lock d after its acquisition, 1 ms to 365 days, even if its holder is alive. It limits the
// damage of a holder that forgot to unlock, whose lock the watchdog would renew without end. A handoff is an
// acquisition; a call by which an Owner re-enters the hold is none. The Lock is then lost with the cause ErrMaxHold.
// Its key is free an eighth of its lease later, so that the holder has time to stop. By default there is no limit.
func WithMaxHold(d time.Duration) LockOption {
	return lockOption(func(c *lockConfig) error {
		if d < renewal.MinTTL || d > renewal.MaxTTL {
			return argument.Error("WithMaxHold", d, "must be 1ms to 8760h")
		}
		c.maxHold = d
		return nil
	})
}

// WithMinHold keeps the name of a Mutex locked for at least d after its acquisition, 1 ms to 365 days, even if its
// holder unlocks it before, its Client is closed or its process dies. So a short job that several processes start at
// the same time, each by its own clock, runs once, if they take the lock with TryLock and skip the job after ErrLocked;
// with Lock or Do, each would run it in turn. Choose a d well above the difference of their clocks and well below the
// period of the job. The default is no minimum. ShedLock calls it lockAtLeastFor.
//
// For its holder, the lock ends with Unlock as without the option. The key stays in Redis until d has passed by
// the server's clock, and State shows its holder, with ":kept" added to the ID. Then a waiter gets the lock. The lock
// is never handed over within the process. If a call fails, the Client releases what Redis has granted to it, without
// a minimum. ForceUnlock ends the minimum, and WithMaxHold does not shorten it. With a d above the lease, the first
// lease is d.
//
// Only the locks that Client.Mutex returns have a minimum. For the other kinds the option is refused, also as a
// default.
func WithMinHold(d time.Duration) LockOption {
	return lockOption(func(c *lockConfig) error {
		if d < renewal.MinTTL || d > renewal.MaxTTL {
			return argument.Error("WithMinHold", d, "must be 1ms to 8760h")
		}
		c.minHold = d
		return nil
	})
}

// maxHandoffs bounds the count of WithHandoff.
const maxHandoffs = 10_000

// WithHandoff bounds how often and for how long a lock is handed over among the waiting callers of one process
// before it is released in Redis, where all processes compete for it: at most maxCount times, and at most until
// maxTime after its acquisition from Redis was sent. The ranges are 0 to 10000 times and 0 to 1 minute; the
// defaults are 100 times and 20 ms. With 0 times a lock is never handed over.
//
// A lock is not handed over either if an eighth of its lease has passed, if it is not renewed (WithoutRenewal),
// if it was extended (Lock.Extend), or if the call that acquired it was retried.
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

// WithStringKey makes a Mutex the lock that most other libraries use, such as bsm/redislock, redsync on one pool,
// node-redlock and the Lock of redis-py: the key is a string, set by SET NX PX and compared before it is renewed or
// removed. So services that use them and this one exclude each other on one name. By default the key is a hash, as in
// Redisson. A key of one form is refused by locks of the other with ErrWrongKind: to change the form of a name, pause
// all its users.
//
// Between holders of this library everything is as without the option. Holders of other libraries tell nobody when
// they release the lock: while one has it, the first waiter of all processes asks every 20 to 60 ms, and the second
// every half second. They take no token of WithFencing, and notice a ForceUnlock when they renew or release the lock,
// if they compare.
//
// Only the locks that Client.Mutex and Client.MultiMutex return have a string key. For the other kinds the option is
// refused, also as a default, and so is WithMinHold beside it.
func WithStringKey() LockOption {
	return lockOption(func(c *lockConfig) error {
		c.stringKey = true
		return nil
	})
}

// maxMetadata is the longest text of WithMetadata, in bytes.
const maxMetadata = 256

// WithMetadata stores a text of 1 to 256 bytes of UTF-8 with the lock in Redis while it is held, such as a host
// and a job. State returns it. Every call for the lock sends the text, so keep it short. Calls with different texts are
// in different queues (see Mutex.Lock), without handoffs between them: name the process, not the request.
func WithMetadata(text string) LockOption {
	return lockOption(func(c *lockConfig) error {
		if text == "" || len(text) > maxMetadata || !utf8.ValidString(text) {
			return argument.Error("WithMetadata", scripts.Quote(text), "must be 1 to 256 bytes of UTF-8")
		}
		c.metadata = metadataMark + url.QueryEscape(text)
		return nil
	})
}

func newConfig(opts []Option) (config, error) {
	c := config{Options: client.Options{
		Package: argument, Logger: slog.Default(), Poll: DefaultPoll,
		Endless: "calls to a Redis that hangs would never end",
	}}
	err := conventions.Apply(argument, &c, opts, Option.apply)
	c.SetDefaultWheel()
	return c, err
}

// setLockDefaults applies WithLockDefaults.
func (c *Client) setLockDefaults(opts []LockOption) (err error) {
	c.defaults = c.share(lockConfig{lease: DefaultLease, renew: true, handoff: handoff{100, 20 * time.Millisecond}})
	if len(opts) > 0 {
		c.defaults, err = c.lockConfig(opts)
	}
	return err
}

func (c *Client) share(l lockConfig) *sharedConfig {
	return &sharedConfig{client: c, lockConfig: l, handle: unique.Make(l), millis: redisconn.Millis(l.firstLease())}
}

// lockConfig applies the options to the defaults. Locks that are made in succession with equal options share
// the result.
func (c *Client) lockConfig(opts []LockOption) (*sharedConfig, error) {
	if len(opts) == 0 {
		return c.defaults, c.redis.CheckLease("WithLease", c.defaults.lease)
	}
	made := c.defaults.lockConfig
	if err := conventions.Apply(argument, &made, opts, LockOption.applyLock); err != nil {
		return nil, err
	}
	if err := c.redis.CheckLease("WithLease", made.lease); err != nil {
		return nil, err
	}
	if made.minHold > 0 {
		made.handoff = handoff{} // a lock that is handed over would not stay locked for its minimum
	}
	if made == c.defaults.lockConfig {
		return c.defaults, nil
	}
	if last := c.lastConfig.Load(); last != nil && last.lockConfig == made {
		return last, nil
	}
	config := c.share(made)
	c.lastConfig.Store(config)
	return config, nil
}
