package ratelimit

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Limiter limits each of any number of keys, such as users or addresses, by one limit that is set in the
// code. Redis has one small string for each key in use, which expires when the whole burst is there again.
// It is safe for concurrent use.
//
// Keys are any bytes, the empty key included. In Redis, the key k under the prefix p is p:{k}, or
// p:{k}:window for FixedWindow; see also WithHashTag. Braces and percent signs in k are escaped, and a k of
// more than 128 bytes is hashed with SHA-256. So no two pairs of prefix and key share a count, even if
// clients choose the keys, and in a cluster the keys spread over the slots.
type Limiter struct {
	client    *Client
	prefix    string
	options   limiterOptions
	algorithm algorithm
	out       *sender // of all keys, if there is one node
	err       error
}

// Limiter returns the limiter of the keys under a prefix: 1 to 1024 bytes without braces. It does not talk to
// Redis, and nothing of it is kept, so it may be made for a single call. Limiters that are made with the
// same arguments share their counts and their scripts. Limiters that share a prefix and an algorithm but not
// the limit share what was used; see With.
//
// An argument that is refused is reported by Err, and by every method, as a *cogwheel.InvalidError.
func (c *Client) Limiter(prefix string, limit Limit, opts ...LimiterOption) *Limiter {
	k := &Limiter{client: c, prefix: prefix}
	for i, o := range opts {
		if o == nil {
			k.check(argument.Error("option", i, "is nil"))
		} else {
			k.check(o.applyLimiter(&k.options))
		}
	}
	if prefix == "" || strings.ContainsAny(prefix, "{}") || len(prefix) > 1024 {
		k.check(argument.Error("prefix", fmt.Sprintf("%.64q", prefix), "must be 1 to 1024 bytes without braces"))
	}
	k.setLimit(limit)
	return k
}

func (k *Limiter) check(err error) {
	if k.err == nil && err != nil {
		k.err = err
	}
}

// setLimit checks the limit, and makes its algorithm.
func (k *Limiter) setLimit(limit Limit) {
	k.options.limit = limit
	if k.options.algorithm == FixedWindow {
		k.check(limit.validateWindow())
	} else {
		k.check(limit.validate())
	}
	if k.err != nil {
		return
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

// Err returns what was wrong with the arguments of Client.Limiter, or nil.
func (k *Limiter) Err() error { return k.err }

// Limit returns the limit of every key.
func (k *Limiter) Limit() Limit { return k.options.limit }

// id tells which state a key has.
func (k *Limiter) id(key string) stateID {
	return stateID{k.options, redisKey(k.prefix, k.options.hashTag, key, k.options.algorithm)}
}

// use returns the state of a key after checking what is asked of it.
func (k *Limiter) use(ctx context.Context, operation, key string, n int64) (*keyState, error) {
	switch {
	case k.err != nil:
		return nil, k.err
	case ctx == nil:
		return nil, argument.Nil("context")
	case n < 0:
		return nil, argument.Error("n", n, "must not be negative")
	}
	if n > k.options.limit.Burst {
		err := fmt.Errorf("%w: %d of %v", ErrExceedsLimit, n, k.options.limit)
		return nil, callError(operation, k.RedisKey(key), err)
	}
	var room [128]byte
	redisKey := appendRedisKey(room[:0], k.prefix, k.options.hashTag, key, k.options.algorithm)
	return k.client.useKey(k.options, redisKey, k.algorithm, k.out), nil
}

// Allow is AllowN of one permit.
func (k *Limiter) Allow(ctx context.Context, key string) (Result, error) {
	return k.AllowN(ctx, key, 1)
}

// AllowN takes n permits of the key if it has them, and does not wait for them. A denial is a Result, not
// an error. n = 0 asks Redis as well, takes nothing and is never denied.
//
// It blocks for at most two round trips, as concurrent callers of one key share scripts: one that joins the
// next script waits for the one in flight. For as long as Redis has said that a key is exhausted, at most a
// second, it denies without asking, and so it does while callers of this process wait for the key.
//
// The policy decides if Redis does not answer within the time of WithTimeout, or by the deadline of ctx if
// the call has waited at least 10 ms by then. If ctx ends otherwise, its error is returned, and the permits
// may have been taken; if it ended before the call, nothing is taken.
//
// Errors match ErrExceedsLimit if n is above the burst, ErrUnavailable if the policy is FailClosed,
// ErrMisconfigured if Redis refuses this client, ErrWrongKind and ErrClosed. A script is sent once and not
// repeated: a lost reply can take permits without success, but not twice.
func (k *Limiter) AllowN(ctx context.Context, key string, n int64) (Result, error) {
	began := k.client.start()
	s, err := k.use(ctx, "allow", key, n)
	if err != nil {
		return Result{}, k.refused(ctx, k.subject(key, n, nil), err)
	}
	defer s.release()
	r, err := s.allow(ctx, n)
	if !s.counted(n, &r, err) {
		k.client.report(ctx, k.subject(key, n, s), &r, err, began)
	}
	return r, err
}

// subject returns what a call is about.
func (k *Limiter) subject(key string, n int64, s *keyState) subject {
	return subject{kind: KindLimiter, name: k.prefix, key: key, n: n, state: s}
}

// refused reports a call that was refused before it had a state.
func (k *Limiter) refused(ctx context.Context, of subject, err error) error {
	k.client.report(ctx, of, &Result{}, err, k.client.start())
	return err
}

// With returns a limiter of the same keys under another limit, as for tenants that have limits of their own.
// It is a small value: nothing is kept for it, in memory or in Redis, so it may be made for each call, and
// every method may be called on it. Options of the Limiter hold for it. An invalid limit is refused: see Err.
//
// The limit of a key may change from one call to the next. Permits used under one limit count under the
// others, so that each limit holds for the requests that are made under it:
//
//   - With GCRA the time until the key is unused stays the same: where three quarters of 1000 per hour are
//     used, three quarters of 100 per hour are. While that time is longer than a whole burst of the new
//     limit takes, nothing is granted.
//   - With FixedWindow the number of used permits stays the same. The window lasts as long as the longest
//     limit under which some of them were used. The next window starts with the whole limit, even if more
//     than that was used.
//
// Reset frees the key, as for a tenant that has bought a larger limit. Denials from memory and waiters in
// line belong to one limit: calls of one process under different limits learn of each other through Redis,
// as calls of different processes do.
func (k *Limiter) With(limit Limit) *Limiter {
	other := *k
	if limit != k.options.limit && k.err == nil {
		other.setLimit(limit)
	}
	return &other
}

// AllowLimitN is With(limit).AllowN.
func (k *Limiter) AllowLimitN(ctx context.Context, key string, n int64, limit Limit) (Result, error) {
	return k.With(limit).AllowN(ctx, key, n)
}

// AllowUpTo takes as many permits of the key as there are, at most n. Result.Granted is their number;
// Allowed is true if it is at least one. RetryAfter of a denial by Redis is the time until one permit is
// there. n may be above the burst; n = 0 is allowed. For blocking, the policy and errors see AllowN.
func (k *Limiter) AllowUpTo(ctx context.Context, key string, n int64) (Result, error) {
	n = min(n, k.options.limit.Burst)
	began := k.client.start()
	s, err := k.use(ctx, "allow up to", key, n)
	if err != nil {
		return Result{}, err
	}
	defer s.release()
	r, err := s.upTo(ctx, n)
	k.client.report(ctx, k.subject(key, n, s), &r, err, began)
	return r, err
}

// Peek returns what Redis would answer to Allow now, but takes nothing: Result.Granted is 0. It never
// answers from memory. For blocking, the policy and errors see AllowN.
func (k *Limiter) Peek(ctx context.Context, key string) (Result, error) {
	s, err := k.use(ctx, "peek", key, 0)
	if err != nil {
		return Result{}, err
	}
	defer s.release()
	return s.peek(ctx)
}

// Wait is WaitN of one permit.
func (k *Limiter) Wait(ctx context.Context, key string) error { return k.WaitN(ctx, key, 1) }

// WaitN blocks until n permits of the key are taken, or until ctx ends. n = 0 returns at once.
//
// The waiters of one process stand in line for each key: none overtakes another, and Allow does not
// overtake them. While Redis is down the policy serves them in order: FailOpen grants, LocalShare grants as
// its share allows, and under FailClosed they go on waiting. A waiter sees within about a second what other
// processes change.
//
// Errors match ErrWouldExceedDeadline, as soon as it is known that the deadline of ctx comes first, the
// waiters ahead counted; ErrExceedsLimit if n is above the burst; ErrMisconfigured, ErrWrongKind and
// ErrClosed; or the error of ctx. After an error the caller has no permits: those already charged for it
// serve the next waiter in line, within the limit, or are given back, or expire unused.
//
// Permits are charged up to 20 ms and two round trips before they can be used. So while a process waits for
// all permits of a key, Allow in other processes is denied.
func (k *Limiter) WaitN(ctx context.Context, key string, n int64) error {
	s, err := k.use(ctx, "wait", key, n)
	if err != nil {
		return k.refused(ctx, k.subject(key, n, nil).waiting(), err)
	}
	defer s.release()
	return s.wait(ctx, k.subject(key, n, s).waiting())
}

// WaitFunc is WaitN without a goroutine that waits: it calls f exactly once, on another goroutine, with the
// result of WaitN, errors of arguments included. cancel ends the wait: f is called with an error that
// matches context.Canceled. Once the wait is decided, cancel does nothing. It may be called several times,
// also concurrently. WaitFunc panics with a *cogwheel.InvalidError if f is nil.
func (k *Limiter) WaitFunc(ctx context.Context, key string, n int64, f func(error)) (cancel func()) {
	mustCall(f == nil)
	s, err := k.use(ctx, "wait", key, n)
	if err != nil {
		return k.client.refuse(f, k.refused(ctx, k.subject(key, n, nil).waiting(), err))
	}
	return s.waitFunc(ctx, k.subject(key, n, s).waiting(), f, s.release)
}

// Reset frees the key: its whole burst can be used again, under every limit of With. Concurrent calls may
// take permits before it or from the new burst. This Limiter sees it at once; other processes, and limits
// of With, within about a second. It blocks for one round trip, or until ctx ends; after an error the key
// may have been freed. For errors see AllowN; no policy decides.
func (k *Limiter) Reset(ctx context.Context, key string) error {
	s, err := k.use(ctx, "reset", key, 0)
	if err != nil {
		return err
	}
	_, err = inside(ctx, s, "reset", func() (struct{}, error) {
		old := s.mark()
		err := k.client.rdb.Del(ctx, s.id.key).Err()
		if err != nil {
			old, err = 0, explain(ctx, err) // the state may be as it was
		}
		s.mu.Lock()
		s.changedLocked(old)
		j := s.kickLocked()
		s.mu.Unlock()
		s.send(j)
		return struct{}{}, err
	})
	return err
}

// Reserve takes n permits now for use after the Reservation's Delay, and does not wait for that. n = 0 takes
// nothing. It blocks as AllowN does.
//
// Errors match ErrWouldExceedDeadline, with nothing taken, if the delay is longer than a minute or than the
// time to the deadline of ctx. No policy decides: while Redis is down they match ErrUnavailable, after the
// time of WithTimeout or at once. For others see AllowN. If ctx ends first, the Client tries to give the
// permits back in the background. FixedWindow has no reservations: it is refused with a
// *cogwheel.InvalidError.
func (k *Limiter) Reserve(ctx context.Context, key string, n int64) (*Reservation, error) {
	if k.err == nil && k.options.algorithm == FixedWindow {
		return nil, argument.Error("WithAlgorithm", "FixedWindow", "has no reservations")
	}
	s, err := k.use(ctx, "reserve", key, n)
	if err != nil {
		return nil, k.refused(ctx, k.subject(key, n, nil), err)
	}
	defer s.release()
	return s.reserve(ctx, k.subject(key, n, s))
}
