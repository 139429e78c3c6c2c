package ratelimit

import (
	"context"
	"fmt"
	"strings"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/keys"
)

// Limiter limits each of any number of keys, such as users or addresses, by one limit that is set in the code.
// Redis has one small string for each key in use, which expires when the whole burst is available again. It is
// safe for concurrent use.
//
// Keys are any bytes, including the empty key. The key k under the prefix p is p:{k} in Redis, p:{k}:window for
// FixedWindow, or p:{k}:sliding for SlidingWindow; see also WithHashTag. Braces and percent signs in k are
// escaped, and a k of more than 128 bytes is hashed with SHA-256. So no two pairs of prefix and key share a
// count, even if clients choose the keys, and in a cluster the keys spread over the slots.
type Limiter struct {
	client    *Client
	prefix    string
	options   keys.Options
	shadow    bool // not part of options, which identify the state
	debt      *int64
	algorithm algo.Combinable
	err       error
}

// Limiter returns a limiter for the keys under a prefix: 1 to 1024 bytes without braces. It does not talk to
// Redis. The Client keeps nothing for a Limiter, so it may be made for a single call. Limiters that are made
// with the same arguments share their counts and their scripts. Limiters with the same prefix and algorithm but
// different limits share the used permits; see With. So two routes that are limited apart need two prefixes: with one,
// the second route denies by what the first one has used. If an argument is invalid, Err and all methods return a
// *cogwheel.InvalidError.
func (c *Client) Limiter(prefix string, limit Limit, opts ...LimiterOption) *Limiter {
	k := &Limiter{client: c, prefix: prefix}
	var cfg limiterConfig
	k.err = conventions.Apply(argument, &cfg, opts, LimiterOption.applyLimiter)
	k.options, k.shadow, k.debt = cfg.Options, cfg.shadow, cfg.debt
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

// setLimit sets the limit and its algorithm, or the error of an invalid limit.
func (k *Limiter) setLimit(limit Limit) {
	limit = limit.whole()
	k.options.Limit = algo.Limit(limit)
	switch {
	case limit == Limit{}:
		k.check(argument.Error("limit", "Limit{}", "has no rate: PerDay(0) would deny every request"))
	case limit.Rate == 0 && limit.Burst == 0:
		limit.Rate, limit.Burst = 1, 1 // for the algorithm, which is never asked to decide
	}
	algorithm := &algo.Kinds[k.options.Algorithm]
	k.check(algorithm.Validate(algo.Limit(limit)))
	if k.err == nil {
		k.algorithm = algorithm.New(algo.Limit(limit))
	}
}

// Err returns the *cogwheel.InvalidError of an invalid argument of Client.Limiter, or nil.
func (k *Limiter) Err() error { return k.err }

// Name returns the prefix of the keys.
func (k *Limiter) Name() string { return k.prefix }

// Limit returns the limit of every key.
func (k *Limiter) Limit() Limit { return Limit(k.options.Limit) }

// id tells which state a key has.
func (k *Limiter) id(key string) keys.ID {
	return keys.ID{Options: k.options, Key: redisKey(k.prefix, k.options.HashTag, key, Algorithm(k.options.Algorithm))}
}

// invalid returns the error of an invalid argument, or nil.
func (k *Limiter) invalid(ctx context.Context, n int64) error {
	switch {
	case k.err != nil:
		return k.err
	case ctx == nil:
		return argument.Nil("context")
	case n < 0:
		return argument.Error("n", n, "must not be negative")
	}
	return nil
}

// blocked reports whether the limit is 0. Then decline decides; the others fail, because any n is above the burst.
func (k *Limiter) blocked() bool { return k.options.Limit.Rate == 0 }

// decline denies a request for n permits of a limit of 0. No permits are granted, unless the call is Peek.
func (k *Limiter) decline(ctx context.Context, operation, key string, n int64) (Result, error) {
	err := k.invalid(ctx, n)
	if err == nil {
		if err = k.client.refusal(ctx); err != nil {
			err = keys.CallError(operation, k.RedisKey(key), err)
		}
	}
	r := declined(n == 0 && operation != opPeek, err)
	k.client.report(ctx, k.subject(key, n, nil), &r, err, k.client.start())
	return k.pass(ctx, n, r, err)
}

// declined returns the result of a limit of 0 for a call with an error.
func declined(allowed bool, err error) Result {
	switch {
	case err != nil:
		return Result{}
	case allowed:
		return Result{Allowed: true, Source: SourceLocal}
	}
	return Result{RetryAfter: Never, Source: SourceLocal}
}

const opPeek, opReserve = "peek", "reserve"

// use returns the state of a key after checking what is asked of it.
func (k *Limiter) use(ctx context.Context, operation, key string, n int64) (*keys.State, error) {
	if err := k.invalid(ctx, n); err != nil {
		return nil, err
	}
	// A reservation of 0 permits could charge a debt.
	if n > k.options.Limit.Burst || k.blocked() && operation == opReserve {
		err := fmt.Errorf("%w: %d of %v", ErrExceedsLimit, n, k.Limit())
		return nil, keys.CallError(operation, k.RedisKey(key), err)
	}
	var room [128]byte
	redisKey := appendRedisKey(room[:0], k.prefix, k.options.HashTag, key, Algorithm(k.options.Algorithm))
	return k.client.core.UseKey(k.options, redisKey, k.algorithm), nil
}

// Allow is AllowN of one permit.
func (k *Limiter) Allow(ctx context.Context, key string) (Result, error) {
	return k.AllowN(ctx, key, 1)
}

// AllowN takes n permits of the key if they are available, and does not wait for them. A denial is a Result,
// not an error. With n = 0 it asks Redis as well, takes nothing and is never denied.
//
// AllowN blocks for at most two round trips: concurrent callers for one key share scripts, and a call that
// joins the next script waits for the script in flight. Once Redis has answered that a key is exhausted, AllowN
// denies without asking until the time that Redis named, for at most a second. It also denies while callers of
// this process wait for the key, and then asks at most about the state of the key.
//
// The policy decides if Redis does not answer within the time of WithTimeout, or by the deadline of ctx if the
// call has waited at least 10 ms by then. If ctx ends in another way, its error is returned, and the permits
// may have been taken; if it ended before the call, nothing is taken.
//
// Errors match ErrExceedsLimit if n is above the burst, ErrUnavailable if the policy is FailClosed,
// ErrMisconfigured if Redis refuses this client, ErrWrongKind and ErrClosed. A script is sent
// again, once, if its connection fails while Redis is well: then the permits may be taken twice.
func (k *Limiter) AllowN(ctx context.Context, key string, n int64) (Result, error) {
	if k.blocked() {
		return k.decline(ctx, "allow", key, n)
	}
	began := k.client.start()
	s, err := k.use(ctx, "allow", key, n)
	if err != nil {
		return k.pass(ctx, n, Result{}, k.refused(ctx, k.subject(key, n, nil), err))
	}
	defer s.Release()
	r, err := result(s.Allow(ctx, n))
	if k.shadow || !k.client.counted(s, n, &r, err) {
		k.client.report(ctx, k.subject(key, n, s), &r, err, began)
	}
	return k.pass(ctx, n, r, err)
}

// subject returns what a call is about.
func (k *Limiter) subject(key string, n int64, s *keys.State) subject {
	return subject{kind: KindLimiter, name: k.prefix, key: key, n: n, shadow: k.shadow, state: s}
}

// refused reports a call that was refused before it had a state, and returns its error: none if WithShadow lets
// the request pass.
func (k *Limiter) refused(ctx context.Context, of subject, err error) error {
	k.client.report(ctx, of, &Result{}, err, k.client.start())
	if k.shadow && passes(ctx, err) {
		return nil
	}
	return err
}

// pass returns the result of a call for the limit's decision on n permits.
func (k *Limiter) pass(ctx context.Context, n int64, r Result, err error) (Result, error) {
	if !k.shadow {
		return r, err
	}
	return passed(ctx, n, r, err)
}

// With returns a limiter for the same keys under another limit, as for tenants with individual limits. It is a
// small value: nothing is kept for it, in memory or in Redis, so it may be made for each call, and it has every
// method. The options of the Limiter apply to it. For an invalid limit, Err and all methods return a
// *cogwheel.InvalidError.
//
// The limit of a key may change from one call to the next. Permits used under one limit count under the others,
// so that each limit holds for the requests that are made under it:
//
//   - With GCRA the time until the key is unused stays the same: if three quarters of 1000 per hour are used,
//     three quarters of 100 per hour are used. While that time is longer than a whole burst of the new limit
//     takes, nothing is granted.
//   - With FixedWindow the number of used permits stays the same. The window lasts as long as the longest limit
//     under which some of them were used. The next window starts with the whole limit, even if more than that
//     was used.
//   - With SlidingWindow the numbers of used permits stay the same too. Both windows last as long as the
//     longest limit under which permits of the current window were used. If that is longer than Per, RetryAfter
//     may be a lower bound.
//
// Reset frees the key, for example when a tenant has bought a larger limit. Denials from memory and waiters in
// line belong to one limit: calls of one process under different limits learn of each other through Redis, as
// calls of different processes do.
func (k *Limiter) With(limit Limit) *Limiter {
	other := *k
	if limit != k.Limit() && k.err == nil {
		other.setLimit(limit)
	}
	return &other
}

// AllowUpTo takes as many permits of the key as are available, at most n, in one decision. Result.Granted is
// their number; Allowed is true if it is at least one. It may take fewer than are available if waiters of this
// process that have left had permits charged. RetryAfter of a denial by Redis is the time until one permit is
// available. n may be above the burst; n = 0 is as in AllowN. For blocking, the policy and errors see AllowN.
//
// Under WithShadow, Granted is n. WouldDeny is true if fewer were available; these were taken.
func (k *Limiter) AllowUpTo(ctx context.Context, key string, n int64) (Result, error) {
	if k.blocked() {
		return k.decline(ctx, "allow up to", key, n)
	}
	wanted := n
	n = min(n, k.options.Limit.Burst)
	began := k.client.start()
	s, err := k.use(ctx, "allow up to", key, n)
	if err != nil {
		return Result{}, k.refused(ctx, k.subject(key, wanted, nil), err)
	}
	defer s.Release()
	r, err := result(s.UpTo(ctx, n))
	k.client.report(ctx, k.subject(key, n, s), &r, err, began)
	return k.pass(ctx, wanted, r, err)
}

// Peek returns the answer that Redis would give to Allow now, but takes nothing: Result.Granted is 0. It never
// answers from memory. For blocking, the policy and errors see AllowN. Under WithShadow, Allowed is true and
// WouldDeny tells what Redis answered, as for Allow.
func (k *Limiter) Peek(ctx context.Context, key string) (Result, error) {
	if k.blocked() {
		return k.decline(ctx, opPeek, key, 0)
	}
	s, err := k.use(ctx, opPeek, key, 0)
	if err != nil {
		return Result{}, err
	}
	defer s.Release()
	r, err := result(s.Peek(ctx))
	return k.pass(ctx, 0, r, err)
}

// Wait is WaitN of one permit.
func (k *Limiter) Wait(ctx context.Context, key string) error { return k.WaitN(ctx, key, 1) }

// WaitN blocks until n permits of the key are taken, or until ctx ends. n = 0 returns at once.
//
// The waiters of one process form a line for each key: no waiter overtakes another, but with GCRA those for different
// numbers of permits may, and Allow does not overtake them. While Redis is down the policy serves them in order:
// FailOpen grants, LocalShare grants as its share allows, and under FailClosed, the default, they wait until Redis is
// back or ctx ends. A waiter sees changes by other processes within about a second.
//
// Errors match ErrWouldExceedDeadline, ErrExceedsLimit if n is above the burst, ErrMisconfigured, ErrWrongKind,
// ErrClosed and wheel.ErrStopped, or are the error of ctx. ErrWouldExceedDeadline is returned as soon as it is known
// that the permits cannot come before the deadline of ctx, after those of the waiters ahead in this process. After an
// error the caller has no permits: permits that were charged for it serve the next waiter in line, within the
// limit, or are given back, or expire unused.
//
// With GCRA, a waiter reserves its place, which begins at most a minute ahead, and gives it back if it leaves. So the
// waiters of all processes are served in the order in which they came. A process holds one place, and more only while
// its last place is less than 100 ms ahead. With windows, permits are charged up to 20 ms and two round trips before
// they can be used. While others wait for all permits of a key, Allow is denied.
func (k *Limiter) WaitN(ctx context.Context, key string, n int64) error {
	s, err := k.use(ctx, "wait", key, n)
	if err != nil {
		return k.refused(ctx, k.subject(key, n, nil).waiting(), err)
	}
	defer s.Release()
	if k.shadow && n > 0 {
		return k.client.askOnce(ctx, s, k.subject(key, n, s).waiting())
	}
	return k.client.wait(ctx, s, k.subject(key, n, s).waiting())
}

// WaitFunc is WaitN without blocking. It calls f exactly once, on another goroutine, with the result of WaitN,
// including errors of arguments. No goroutine runs while the call waits. Under WithShadow one runs until the
// decision, and only then.
//
// cancel ends the wait: f is then called with an error that matches context.Canceled. Once the wait is decided,
// cancel does nothing. It may be called several times, also concurrently. A panic of f is logged. WaitFunc
// panics with a *cogwheel.InvalidError if f is nil.
func (k *Limiter) WaitFunc(ctx context.Context, key string, n int64, f func(error)) (cancel func()) {
	argument.MustCall(f == nil)
	s, err := k.use(ctx, "wait", key, n)
	if err != nil {
		return k.client.refuse(f, k.refused(ctx, k.subject(key, n, nil).waiting(), err))
	}
	if k.shadow && n > 0 {
		return k.client.askOnceFunc(ctx, s, k.subject(key, n, s).waiting(), f)
	}
	return k.client.waitFunc(ctx, s, k.subject(key, n, s).waiting(), f)
}

// Reset makes the whole burst of the key available again, under every limit of With. Concurrent calls may take
// permits before the reset or from the new burst. This Limiter sees it at once; other processes, and limits of
// With, see it within about a second. Reset blocks for one round trip, at most until ctx ends. After an error
// the key may have been reset. For errors see AllowN; no policy decides.
func (k *Limiter) Reset(ctx context.Context, key string) error {
	s, err := k.use(ctx, "reset", key, 0)
	if err != nil {
		return err
	}
	_, err = inside(ctx, s, "reset", func(ctx context.Context) (struct{}, error) {
		old := s.Mark()
		err := k.client.rdb.Del(ctx, s.ID.Key).Err()
		if err != nil {
			old, err = 0, keys.Explain(ctx, err) // the state may be unchanged
		}
		s.LimitChanged(old)
		return struct{}{}, err
	})
	return err
}

// Reserve takes n permits now for use after the delay of the Reservation, and does not wait for that time. n =
// 0 takes nothing. It blocks as AllowN does. TryReserve takes only permits that can be used now, and decides as AllowN.
//
// The error matches ErrWouldExceedDeadline, with nothing taken, if the delay is longer than a minute or than
// the time until the deadline of ctx. No policy decides: while Redis is down the error matches ErrUnavailable,
// after the time of WithTimeout or at once. For other errors see AllowN. If ctx ends first, the Client tries to
// give the permits back in the background.
//
// With FixedWindow and SlidingWindow a Reservation has no delay: if the permits are not available now, the error
// matches ErrWouldExceedDeadline. Settle gives permits back to the window from which they were taken: for
// FixedWindow until it ends, or a debt or a waiter has opened the next one, for SlidingWindow until the next window
// ends, unless calls under another Per have changed the length of the windows.
//
// Under WithShadow, Reserve decides as TryReserve does, by the policy too. The Reservation has no delay. If the limit
// would have denied the request, it is for no permits.
func (k *Limiter) Reserve(ctx context.Context, key string, n int64) (*Reservation, error) {
	if k.shadow && n > 0 {
		r, err := k.TryReserve(ctx, key, n)
		if r.Reservation == nil && err == nil {
			r.Reservation = &Reservation{}
		}
		return r.Reservation, err
	}
	s, err := k.use(ctx, opReserve, key, n)
	if err != nil {
		return nil, k.refused(ctx, k.subject(key, n, nil), err)
	}
	defer s.Release()
	return k.client.reserve(ctx, s, k.subject(key, n, s), k.mostDebt())
}

// TryReserve is AllowN for a cost that is known only later: if it grants the request, Result.Reservation settles the
// permits. Blocking, the policy, n = 0 and errors are those of AllowN, but the call shares no script with others.
// Unlike Reserve, it has no delay, a denial is a Result, and the policy decides. It does not use permits that were
// charged for waiters who have left; AllowN does. If ctx ends first, the Client tries to give the permits back in the
// background.
func (k *Limiter) TryReserve(ctx context.Context, key string, n int64) (Result, error) {
	if k.blocked() {
		return k.decline(ctx, opReserve, key, n)
	}
	began := k.client.start()
	s, err := k.use(ctx, opReserve, key, n)
	if err != nil {
		return k.pass(ctx, n, Result{}, k.refused(ctx, k.subject(key, n, nil), err))
	}
	defer s.Release()
	r, err := tryReserve(ctx, s, n, chargeOf(s, algo.Span{N: n}, n, k.mostDebt()))
	k.client.report(ctx, k.subject(key, n, s), &r, err, began)
	return k.pass(ctx, n, r, err)
}

// mostDebt returns how many permits a settlement may charge above a whole burst.
func (k *Limiter) mostDebt() int64 {
	if k.debt != nil {
		return *k.debt
	}
	return k.options.Limit.Burst
}
