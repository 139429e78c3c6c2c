package ratelimit

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Keyed limits each of any number of keys, such as users or addresses, by one limit that stands in the code. In Redis
// a key that is used has one small string, which expires by itself when it says no more than its absence.
// It is safe for concurrent use.
//
// Keys are any bytes, the empty key included. In Redis the key k under the prefix p is p:{k}, or p:{k}:window for fixed windows;
// braces and percent signs in k are escaped, and a k of more than 128 bytes is hashed with SHA-256. So no two pairs of
// prefix and key share a count, whoever chooses the keys, and in a cluster keys spread over the slots.
type Keyed struct {
	client    *Client
	prefix    string
	options   keyedOptions
	algorithm algorithm
	out       *sender // of all keys, if there is one node
	err       error
}

// Keyed returns the limiter of the keys under a prefix. It does not talk to Redis, and nothing of it is kept, so it may be made
// for a single call; limiters that are made with the same arguments work as one. Limiters that share a prefix and an algorithm should share
// the limit: a state made under another limit is read as well as it can be, as if the clock had stepped.
// A bad prefix, limit or option is reported by Err, and by every method, as an *InvalidError.
func (c *Client) Keyed(prefix string, limit Limit, opts ...KeyedOption) *Keyed {
	k := &Keyed{client: c, prefix: prefix}
	for i, o := range opts {
		if o == nil {
			k.check(argument.Error("option", i, "is nil"))
		} else {
			k.check(o.applyKeyed(&k.options))
		}
	}
	if prefix == "" || strings.ContainsAny(prefix, "{}") || len(prefix) > 1024 {
		k.check(argument.Error("prefix", fmt.Sprintf("%.64q", prefix), "must be 1 to 1024 bytes without braces"))
	}
	k.setLimit(limit)
	return k
}

func (k *Keyed) check(err error) {
	if k.err == nil && err != nil {
		k.err = err
	}
}

// setLimit checks the limit, and the options that depend on it.
func (k *Keyed) setLimit(limit Limit) {
	k.options.limit = limit
	if k.options.algorithm == FixedWindow {
		k.check(limit.validateWindow())
	} else {
		k.check(limit.validate())
	}
	switch {
	case k.err != nil:
		return
	case k.options.prefetch > limit.Burst/4 && k.options.prefetch > 0:
		k.check(argument.Error("WithPrefetch n", k.options.prefetch, "must be at most a quarter of the burst"))
	case k.options.within > limit.Per/10:
		k.check(argument.Error("WithPrefetch within", k.options.within, "must be at most a tenth of the period"))
	}
	if k.options.algorithm == FixedWindow {
		k.algorithm = &window{limit: limit}
	} else {
		k.algorithm = newGCRA(limit)
	}
	if _, single := k.client.base.(*redis.Client); single {
		k.out = k.client.senders.of(k.algorithm.script(), "")
	}
}

// Err returns what was wrong with the arguments of Client.Keyed, or nil.
func (k *Keyed) Err() error { return k.err }

// Limit returns the limit of every key.
func (k *Keyed) Limit() Limit { return k.options.limit }

// use returns the state of a key after checking what is asked of it.
func (k *Keyed) use(ctx context.Context, operation, key string, n int64) (*keyState, error) {
	switch {
	case k.err != nil:
		return nil, k.err
	case ctx == nil:
		return nil, argument.Nil("context")
	case n < 0:
		return nil, argument.Error("n", n, "must not be negative")
	}
	id := stateID{k.options, redisKey(k.prefix, key, k.options.algorithm)}
	if n > k.options.limit.Burst {
		return nil, &callError{operation, id.key, fmt.Errorf("%w: %d of %v", ErrExceedsLimit, n, k.options.limit)}
	}
	return k.client.use(id, k.algorithm, k.out), nil
}

// Allow is AllowN of one permit.
func (k *Keyed) Allow(ctx context.Context, key string) (Result, error) { return k.AllowN(ctx, key, 1) }

// AllowN charges n permits to the key if it has them, and does not wait for them. It blocks for at most one round trip and
// that of the call before it: concurrent callers of one key share a script. Within the time that Redis has said
// a key is exhausted, at most a second, it answers without asking. n = 0 charges nothing and is Peek.
//
// A denial is a Result, not an error. ErrExceedsLimit: n is above the burst. ErrUnavailable: see WithPolicy; the policy decides
// after the time of WithTimeout, and at the deadline of ctx unless that came within 10 ms. ErrMisconfigured: Redis refuses this
// client. If ctx is cancelled first, its error is returned and the permits may be charged. The script is sent once and never
// repeated: a lost reply can charge in vain, but not twice.
func (k *Keyed) AllowN(ctx context.Context, key string, n int64) (Result, error) {
	s, err := k.use(ctx, "allow", key, n)
	if err != nil {
		return Result{}, err
	}
	defer s.release()
	return s.allow(ctx, n)
}

// AllowLimit is Allow under another limit than the Keyed's, for keys that have limits of their own, such as tenants. Nothing is
// kept for the limit. A key that comes with another limit than before keeps what it has used, as far as that can be read.
func (k *Keyed) AllowLimit(ctx context.Context, key string, limit Limit) (Result, error) {
	return k.AllowLimitN(ctx, key, 1, limit)
}

// AllowLimitN is AllowN under another limit than the Keyed's.
func (k *Keyed) AllowLimitN(ctx context.Context, key string, n int64, limit Limit) (Result, error) {
	other := *k
	if limit != k.options.limit && k.err == nil {
		other.setLimit(limit)
	}
	return other.AllowN(ctx, key, n)
}

// AllowUpTo charges as many permits to the key as it has, at most n, in one round trip. Result.Granted tells how many; Allowed
// is true if it is at least one. n may be above the burst; n = 0 is Peek. It does not overtake those who wait.
func (k *Keyed) AllowUpTo(ctx context.Context, key string, n int64) (Result, error) {
	n = min(n, k.options.limit.Burst)
	s, err := k.use(ctx, "allow up to", key, n)
	if err != nil {
		return Result{}, err
	}
	defer s.release()
	return s.upTo(ctx, n)
}

// Peek returns what Allow would say, and changes nothing. It blocks for one round trip. Result.Granted is 0. What this process
// has charged in advance does not count as remaining.
func (k *Keyed) Peek(ctx context.Context, key string) (Result, error) {
	s, err := k.use(ctx, "peek", key, 0)
	if err != nil {
		return Result{}, err
	}
	defer s.release()
	return s.peek(ctx)
}

// Wait is WaitN of one permit.
func (k *Keyed) Wait(ctx context.Context, key string) error { return k.WaitN(ctx, key, 1) }

// WaitN blocks until n permits are charged to the key. Waiters of one process stand in line for each key: none overtakes
// another, and Allow does not overtake them. A wait that cannot end before the deadline of ctx, those ahead of it
// counted, fails with ErrWouldExceedDeadline as soon as that is known, one for more than the burst with ErrExceedsLimit; if
// ctx ends, its error is returned. Then nothing is charged: permits that were charged for a waiter that leaves serve those behind it,
// within the limit, or are given back if nobody came since, or are lost.
//
// Permits are charged up to 20 ms before they can be used, so while some process waits for all that a key has,
// Allow of others is denied. A waiter sees within a second what other processes change.
func (k *Keyed) WaitN(ctx context.Context, key string, n int64) error {
	s, err := k.use(ctx, "wait", key, n)
	if err != nil {
		return err
	}
	defer s.release()
	return s.wait(ctx, n)
}

// WaitFunc is WaitN without a goroutine: f is called exactly once, on a goroutine of its own, with what WaitN would
// return. cancel ends the wait, and calls f with context.Canceled, unless it is decided already.
func (k *Keyed) WaitFunc(ctx context.Context, key string, n int64, f func(error)) (cancel func()) {
	mustCall(f == nil)
	s, err := k.use(ctx, "wait", key, n)
	if err != nil {
		return k.client.refuse(f, err)
	}
	return s.waitFunc(ctx, n, f, s.release)
}

// Reset forgets the key: its whole burst can be used again. Other processes learn of it within a second. It returns when Redis
// has answered or ctx ends; then the key may be forgotten or not.
func (k *Keyed) Reset(ctx context.Context, key string) error {
	s, err := k.use(ctx, "reset", key, 0)
	if err != nil {
		return err
	}
	_, err = inside(ctx, s, "reset", func() (struct{}, error) {
		s.invalidate()
		defer s.invalidate() // nor is what was asked for meanwhile to be believed
		if err := k.client.rdb.Del(ctx, s.id.key).Err(); err != nil {
			return struct{}{}, explain(ctx, err)
		}
		return struct{}{}, nil
	})
	return err
}

// Reserve charges n permits now for use after the Reservation's Delay, and does not wait. It fails with
// ErrWouldExceedDeadline, charging nothing, if the delay would be beyond the deadline of ctx or a minute, and with
// ErrUnavailable after the time of WithTimeout, whatever the policy. FixedWindow has no reservations.
func (k *Keyed) Reserve(ctx context.Context, key string, n int64) (*Reservation, error) {
	if k.err == nil && k.options.algorithm == FixedWindow {
		return nil, argument.Error("WithAlgorithm", "FixedWindow", "has no reservations")
	}
	s, err := k.use(ctx, "reserve", key, n)
	if err != nil {
		return nil, err
	}
	defer s.release()
	return s.reserve(ctx, n)
}
