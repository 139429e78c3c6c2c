package ratelimit

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Keyed limits each of any number of keys, such as users or addresses, by one limit that stands in the code. In Redis
// a key that is used has one small string, which expires by itself when it says no more than its absence.
// It is safe for concurrent use.
type Keyed struct {
	client   *Client
	prefix   string
	limit    Limit
	registry *registry
	gcra     *gcra // nil for FixedWindow
	err      error
}

// Keyed returns the limiter of the keys prefix:{key}. It does not talk to Redis. Calls with the same arguments return limiters
// that work as one; each new combination of arguments stays in memory until the Client is let go. Limiters that share a prefix should share
// the limit: a state made under another limit is read as well as it can be, as if the clock had stepped.
// A bad prefix, limit or option is reported by every method as an *InvalidError.
func (c *Client) Keyed(prefix string, limit Limit, opts ...KeyedOption) *Keyed {
	k := &Keyed{client: c, prefix: prefix, limit: limit}
	var cfg keyedConfig
	for i, o := range opts {
		if o == nil {
			k.err = &InvalidError{"option", i, "is nil"}
		} else if err := o.applyKeyed(&cfg); err != nil {
			k.err = err
		}
	}
	var e engine
	if cfg.algorithm == FixedWindow {
		k.check(limit.validateWindow())
		e = &window{limit: limit}
	} else if k.check(limit.validate()); k.err == nil {
		k.gcra = newGCRA(limit)
		e = k.gcra
	}
	switch {
	case prefix == "" || strings.ContainsAny(prefix, "{}") || len(prefix) > 1024:
		k.check(&InvalidError{"prefix", scripts.Quote(prefix), "must be 1 to 1024 bytes without braces"})
	case cfg.prefetch > limit.Burst/4 && cfg.prefetch > 0:
		k.check(&InvalidError{"WithPrefetch n", cfg.prefetch, "must be at most a quarter of the burst"})
	case cfg.within > limit.Per/10:
		k.check(&InvalidError{"WithPrefetch within", cfg.within, "must be at most a tenth of the period"})
	}
	if k.err == nil {
		k.registry = c.keyed(kind{prefix, limit, cfg}, e)
	}
	return k
}

func (k *Keyed) check(err error) {
	if k.err == nil && err != nil {
		k.err = err
	}
}

// use returns the lane of a key after checking what is asked of it.
func (k *Keyed) use(key string, n int64) (*lane, error) {
	if k.err != nil {
		return nil, k.err
	}
	if err := checkRequest(key, n); err != nil {
		return nil, err
	}
	if n > k.limit.Burst {
		return nil, fmt.Errorf("%w: %d of %v", ErrExceedsLimit, n, k.limit)
	}
	return k.registry.use(scripts.PrefixName(k.prefix, key)), nil
}

func checkRequest(name string, n int64) error {
	if err := scripts.CheckName(name); err != nil {
		return &InvalidError{"name", scripts.Quote(name), err.Error()}
	}
	if n < 0 {
		return &InvalidError{"n", n, "must not be negative"}
	}
	return nil
}

// Allow is AllowN of one permit.
func (k *Keyed) Allow(ctx context.Context, key string) (Result, error) { return k.AllowN(ctx, key, 1) }

// AllowN charges n permits to the key if it has them, and does not wait for them. It blocks for at most one round trip and
// that of the call before it: concurrent callers of one key share a script. Within the time that Redis has said
// a key is exhausted, at most a second, it answers without asking. n = 0 charges nothing and is Peek.
//
// A denial is a Result, not an error. ErrExceedsLimit: n is above the burst. ErrUnavailable: see WithPolicy.
// If ctx ends first, its error is returned and the permits may be charged. The script is sent once and never repeated: a
// lost reply can charge in vain, but not twice.
func (k *Keyed) AllowN(ctx context.Context, key string, n int64) (Result, error) {
	l, err := k.use(key, n)
	if err != nil {
		return Result{}, err
	}
	defer k.registry.release(l)
	return l.decide(ctx, n)
}

// AllowUpTo charges as many permits to the key as it has, at most n, in one round trip. Result.Granted tells how many; Allowed
// is true if it is at least one. n may be above the burst; n = 0 is Peek. It does not overtake those who wait.
func (k *Keyed) AllowUpTo(ctx context.Context, key string, n int64) (Result, error) {
	n = min(n, k.limit.Burst)
	l, err := k.use(key, n)
	if err != nil {
		return Result{}, err
	}
	defer k.registry.release(l)
	return l.upTo(ctx, n)
}

// Peek returns what Allow would say, and changes nothing. It blocks for one round trip. Result.Granted is 0.
func (k *Keyed) Peek(ctx context.Context, key string) (Result, error) { return k.AllowN(ctx, key, 0) }

// Wait is WaitN of one permit.
func (k *Keyed) Wait(ctx context.Context, key string) error { return k.WaitN(ctx, key, 1) }

// WaitN blocks until n permits are charged to the key. Waiters of one process stand in line for each key: none overtakes
// another, and Allow does not overtake them. A wait that cannot end before the deadline of ctx fails at
// once with ErrWouldExceedDeadline, one for more than the burst with ErrExceedsLimit; if ctx ends, its error is returned.
// Then nothing was charged, but for a call in flight: its permits go to the next waiter, or are lost.
func (k *Keyed) WaitN(ctx context.Context, key string, n int64) error {
	l, err := k.use(key, n)
	if err != nil || n == 0 {
		if err == nil {
			k.registry.release(l)
		}
		return err
	}
	defer k.registry.release(l)
	return l.wait(ctx, k.registry, n)
}

// WaitFunc is WaitN without a goroutine: f is called exactly once, on a goroutine of its own, with what WaitN would
// return. cancel ends the wait, and calls f with context.Canceled, unless it is decided already.
func (k *Keyed) WaitFunc(ctx context.Context, key string, n int64, f func(error)) (cancel func()) {
	l, err := k.use(key, max(n, 1))
	if n < 1 && err == nil {
		k.registry.release(l)
		err = &InvalidError{"n", n, "must be at least 1"}
	}
	if err != nil {
		return k.client.refuse(f, err)
	}
	return l.waitFunc(ctx, k.registry, n, f, func() { k.registry.release(l) })
}

// refuse tells f an error from elsewhere than the caller's stack.
func (c *Client) refuse(f func(error), err error) func() {
	if _, stopped := c.wheel.AfterFunc(0, func() { f(err) }); stopped != nil {
		go f(err)
	}
	return func() {}
}

// Reset forgets the key: its whole burst can be used again. Other processes learn of it within a second.
func (k *Keyed) Reset(ctx context.Context, key string) error {
	l, err := k.use(key, 0)
	if err != nil {
		return err
	}
	defer k.registry.release(l)
	return k.client.inside(func() error {
		if err := k.client.rdb.Del(ctx, l.key).Err(); err != nil {
			return explain(l.key, err)
		}
		k.registry.forget(l)
		return nil
	})
}

// Reserve charges n permits now for use after the Reservation's Delay, and does not wait. It fails with
// ErrWouldExceedDeadline, charging nothing, if the delay would be beyond the deadline of ctx or a minute.
// FixedWindow has no reservations.
func (k *Keyed) Reserve(ctx context.Context, key string, n int64) (*Reservation, error) {
	if k.err == nil && k.gcra == nil {
		return nil, &InvalidError{"Algorithm", "FixedWindow", "has no reservations"}
	}
	l, err := k.use(key, n)
	if err != nil {
		return nil, err
	}
	defer k.registry.release(l)
	return k.client.reserve(ctx, n, k.registry, l, func(ahead time.Duration) (time.Duration, cancelFunc, error) {
		return k.gcra.reserve(k.client, l.key, n, ahead)
	})
}

// Limit returns the limit of every key.
func (k *Keyed) Limit() Limit { return k.limit }
