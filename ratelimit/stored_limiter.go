package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Scope says which grants a limit counts.
type Scope uint8

const (
	// Overall is one count for all Clients.
	Overall Scope = iota
	// PerClient is a count for each Client, by the same limit. As in Redisson, the counts are in Redis, under
	// keys that end in a random id of the Client. They expire a minute after the last entry has left the log, so
	// the counts of processes that have ended do not stay.
	PerClient
)

// String returns "overall", "per client", or "unknown".
func (s Scope) String() string {
	switch s {
	case Overall:
		return "overall"
	case PerClient:
		return "per client"
	}
	return "unknown"
}

// StoredLimiter limits one name by a sliding log: in no interval, wherever it begins, more than the rate is
// granted. Its limit and scope stand in Redis and can be changed at any time, for all processes. Keys and
// entries are those of Redisson's RRateLimiter from version 3.13.3 on, except 3.16.4 to 3.16.8, so services in
// Java and Go share a limit. It is safe for concurrent use and costs nothing to make.
//
// TrySetRate, SetRate, UpdateRate, Config and Delete block for one round trip, or until ctx ends; no policy
// decides. After an error a change may have been made or not. This process sees a change at once, others
// see it within about a second. For errors see AllowN; an invalid limit or option is refused with a
// *cogwheel.InvalidError.
//
// A name may hold a hash tag of its own, in braces. As in Redisson, the names a and {a} have a limit each
// but share what was granted, as both keep it in {a}:value and {a}:permits: use one of them.
type StoredLimiter struct {
	client *Client
	name   string
	err    error
}

// StoredLimiter returns the limiter of that name. It does not talk to Redis, and nothing of it is kept. A name is
// any 1 to 65536 bytes whose derived keys share a cluster slot: if it contains a brace, it must contain a
// hash tag such as {user:7}. A name that is refused is reported by Err, and by every method, as an
// *cogwheel.InvalidError.
func (c *Client) StoredLimiter(name string) *StoredLimiter {
	l := &StoredLimiter{client: c, name: name}
	if refused, ok := errors.AsType[*scripts.NameError](scripts.CheckName(name)); ok {
		l.err = argument.Error("name", scripts.Quote(name), refused.Reason)
	}
	return l
}

// Err returns what was wrong with the name given to Client.StoredLimiter, or nil.
func (l *StoredLimiter) Err() error { return l.err }

// Config is a limit as it is in Redis.
type Config struct {
	Limit     // Burst is equal to Rate
	Scope     Scope
	KeepAlive time.Duration // after which an unused limiter vanishes, its limit included; 0 is never
}

// SetOption configures TrySetRate, SetRate and UpdateRate. If an option is given twice, the last one
// counts.
type SetOption interface{ applySet(*setConfig) }

type setConfig struct {
	scope     *Scope // nil: as it is
	keepAlive time.Duration
	keepState bool
}

type setOptionFunc func(*setConfig)

func (f setOptionFunc) applySet(c *setConfig) { f(c) }

// WithScope sets the scope. The default is the scope that the limit has, and Overall for a limit that is not set.
func WithScope(s Scope) SetOption { return setOptionFunc(func(c *setConfig) { c.scope = &s }) }

// WithKeepAlive lets the limiter, limit and all, vanish when it was not used for that long: whole
// milliseconds, not less than the limit's period. Requests for permits that reach Redis are uses, also if
// they are denied; Peek is not. By default the limiter stays, also if an earlier limit had a WithKeepAlive.
func WithKeepAlive(d time.Duration) SetOption {
	return setOptionFunc(func(c *setConfig) { c.keepAlive = d })
}

// WithState keeps the grants so far: they count under the new limit. By default, and whenever the scope
// changes, they are forgotten. It has no effect on TrySetRate.
func WithState() SetOption { return setOptionFunc(func(c *setConfig) { c.keepState = true }) }

// TrySetRate sets the limit if none is set, and reports whether it did.
func (l *StoredLimiter) TrySetRate(ctx context.Context, limit Limit, opts ...SetOption) (bool, error) {
	return l.set(ctx, "try", limit, opts)
}

// SetRate sets the limit. It forgets the grants so far, under the scope PerClient those of all Clients,
// unless WithState is given.
func (l *StoredLimiter) SetRate(ctx context.Context, limit Limit, opts ...SetOption) error {
	_, err := l.set(ctx, "set", limit, opts)
	return err
}

// UpdateRate is SetRate if a limit is set already; otherwise it returns false and changes nothing.
func (l *StoredLimiter) UpdateRate(ctx context.Context, limit Limit, opts ...SetOption) (bool, error) {
	return l.set(ctx, "update", limit, opts)
}

func (l *StoredLimiter) set(ctx context.Context, mode string, limit Limit, opts []SetOption) (bool, error) {
	var cfg setConfig
	for i, o := range opts {
		if o == nil {
			return false, argument.Error("option", i, "is nil")
		}
		o.applySet(&cfg)
	}
	switch err := limit.validateWindow(); {
	case err != nil:
		return false, err
	case cfg.scope != nil && *cfg.scope != Overall && *cfg.scope != PerClient:
		return false, argument.Error("WithScope", int(*cfg.scope), "must be Overall or PerClient")
	case cfg.keepAlive != 0 && (cfg.keepAlive < limit.Per || cfg.keepAlive%time.Millisecond != 0):
		return false, argument.Error("WithKeepAlive", cfg.keepAlive, "must be whole milliseconds, at least the period")
	}
	scope := ""
	if cfg.scope != nil {
		scope = strconv.Itoa(int(*cfg.scope))
	}
	return manage(ctx, l, "set", func(s *keyState) (bool, error) {
		old := s.mark()
		set, err := scripts.Flag(scripts.RateSet.Run(ctx, l.client.rdb, logKeys(l.name), mode, limit.Rate,
			limit.Per.Milliseconds(), scope, cfg.keepAlive.Milliseconds(), flag(cfg.keepState)))
		if err != nil {
			return false, explain(ctx, err)
		}
		if !set {
			old = 0
		}
		if set && cfg.scope != nil {
			s.algorithm.(*slidingLog).perClient.Store(*cfg.scope == PerClient)
		}
		s.limitChanged(old)
		return set, nil
	})
}

// Config returns the limit as it is in Redis, or ErrNotSet.
func (l *StoredLimiter) Config(ctx context.Context) (Config, error) {
	return manage(ctx, l, "config", func(*keyState) (Config, error) {
		fields, err := l.client.rdb.HGetAll(ctx, l.name).Result()
		if err != nil {
			return Config{}, explain(ctx, err)
		}
		number := func(field string) int64 {
			n, _ := strconv.ParseInt(fields[field], 10, 64)
			return n
		}
		rate, interval := number("rate"), number("interval")
		if rate < 1 || interval < 1 || fields["type"] == "" {
			return Config{}, ErrNotSet
		}
		scope, err := strconv.ParseUint(fields["type"], 10, 8)
		if err != nil || Scope(scope) != Overall && Scope(scope) != PerClient {
			return Config{}, fmt.Errorf("%w: its type is %s", ErrWrongKind, scripts.Quote(fields["type"]))
		}
		return Config{
			Limit:     Limit{Rate: rate, Per: millis(interval), Burst: rate},
			Scope:     Scope(scope),
			KeepAlive: millis(number("keepAliveTime")),
		}, nil
	})
}

// Delete removes the limit and the grants, and reports whether there was anything. Waiters fail with
// ErrNotSet.
func (l *StoredLimiter) Delete(ctx context.Context) (bool, error) {
	return manage(ctx, l, "delete", func(s *keyState) (bool, error) {
		old := s.mark()
		n, err := l.client.rdb.Del(ctx, logKeys(l.name)...).Result()
		if err != nil {
			return false, explain(ctx, err)
		}
		s.limitChanged(old)
		return n > 0, nil
	})
}

// limitChanged is called when this process has set or deleted the limit. See changedLocked.
func (s *keyState) limitChanged(old int64) {
	s.mu.Lock()
	s.changedLocked(old)
	j := s.kickLocked()
	s.mu.Unlock()
	s.send(j)
}

// use returns the state of the name after checking what is asked of it.
func (l *StoredLimiter) use(ctx context.Context, operation string, n int64) (*keyState, error) {
	switch {
	case l.err != nil:
		return nil, l.err
	case ctx == nil:
		return nil, argument.Nil("context")
	case n < 0:
		return nil, argument.Error("n", n, "must not be negative")
	case n > MaxRate:
		return nil, callError(operation, l.name, fmt.Errorf("%w: %d permits", ErrExceedsLimit, n))
	}
	return l.client.use(stateID{limiterOptions{algorithm: logAlgorithm}, l.name}, nil, nil), nil
}

// manage runs f, which asks Redis itself, and returns when it has or ctx ends, whatever Redis does.
func manage[T any](ctx context.Context, l *StoredLimiter, operation string, f func(*keyState) (T, error)) (T, error) {
	s, err := l.use(ctx, operation, 0)
	if err != nil {
		var none T
		return none, err
	}
	return inside(ctx, s, operation, func() (T, error) { return f(s) })
}

// Allow is AllowN of one permit.
func (l *StoredLimiter) Allow(ctx context.Context) (Result, error) { return l.AllowN(ctx, 1) }

// AllowN takes n permits if there are so many, and does not wait for them. A denial is a Result, not an
// error. Blocking, the policy, n = 0 and errors are those of Limiter.AllowN, where ErrExceedsLimit says
// that n is above the rate, and ErrNotSet, also for n = 0, that no limit is set. go-redis may send the
// script again after a lost reply; it takes the permits once.
func (l *StoredLimiter) AllowN(ctx context.Context, n int64) (Result, error) {
	began := l.client.start()
	s, err := l.use(ctx, "allow", n)
	if err != nil {
		return Result{}, l.refused(ctx, l.subject(n, nil), err)
	}
	defer s.release()
	r, err := s.allow(ctx, n)
	if !s.counted(n, &r, err) {
		l.client.report(ctx, l.subject(n, s), &r, err, began)
	}
	return r, err
}

// subject returns what a call is about.
func (l *StoredLimiter) subject(n int64, s *keyState) subject {
	return subject{kind: KindStoredLimiter, name: l.name, n: n, state: s}
}

// refused reports a call that was refused before it had a state.
func (l *StoredLimiter) refused(ctx context.Context, of subject, err error) error {
	l.client.report(ctx, of, &Result{}, err, l.client.start())
	return err
}

// Peek returns what Redis would answer to Allow now, but takes nothing; see Limiter.Peek. For errors see
// AllowN.
func (l *StoredLimiter) Peek(ctx context.Context) (Result, error) {
	s, err := l.use(ctx, "peek", 0)
	if err != nil {
		return Result{}, err
	}
	defer s.release()
	return s.peek(ctx)
}

// AllowUpTo takes as many permits as there are, at most n, which may be above the rate; see
// Limiter.AllowUpTo. For errors see AllowN.
func (l *StoredLimiter) AllowUpTo(ctx context.Context, n int64) (Result, error) {
	n = min(n, MaxRate)
	began := l.client.start()
	s, err := l.use(ctx, "allow up to", n)
	if err != nil {
		return Result{}, err
	}
	defer s.release()
	r, err := s.upTo(ctx, n)
	l.client.report(ctx, l.subject(n, s), &r, err, began)
	return r, err
}

// Wait is WaitN of one permit.
func (l *StoredLimiter) Wait(ctx context.Context) error { return l.WaitN(ctx, 1) }

// WaitN blocks until n permits are taken, or until ctx ends. n = 0 returns at once. Order, the policy and
// errors are those of Limiter.WaitN, where ErrExceedsLimit says that n is above the rate, and ErrNotSet
// that no limit is set, also if the limit changes during the wait. An entry that was made for a waiter that
// leaves serves the next waiter if that asks for exactly as many permits, or is taken out of the log.
// Entries are made up to 20 ms and two round trips before they can be used.
func (l *StoredLimiter) WaitN(ctx context.Context, n int64) error {
	s, err := l.use(ctx, "wait", n)
	if err != nil {
		return l.refused(ctx, l.subject(n, nil).waiting(), err)
	}
	defer s.release()
	return s.wait(ctx, l.subject(n, s).waiting())
}

// WaitFunc is WaitN without a goroutine that waits; see Limiter.WaitFunc.
func (l *StoredLimiter) WaitFunc(ctx context.Context, n int64, f func(error)) (cancel func()) {
	mustCall(f == nil)
	s, err := l.use(ctx, "wait", n)
	if err != nil {
		return l.client.refuse(f, l.refused(ctx, l.subject(n, nil).waiting(), err))
	}
	return s.waitFunc(ctx, l.subject(n, s).waiting(), f, s.release)
}

// Reserve takes n permits now for use after the Reservation's Delay, and does not wait for that; see
// Limiter.Reserve. In Redis it is an entry with a time to come, which Redisson counts as any other.
func (l *StoredLimiter) Reserve(ctx context.Context, n int64) (*Reservation, error) {
	s, err := l.use(ctx, "reserve", n)
	if err != nil {
		return nil, l.refused(ctx, l.subject(n, nil), err)
	}
	defer s.release()
	return s.reserve(ctx, l.subject(n, s))
}

// Return gives back the permits of one Result of Allow, AllowN or AllowUpTo of this StoredLimiter, and
// reports whether they were still in the log. Others can use them at once. A second call, and any other
// Result, finds nothing to give back. It blocks for one round trip, or until ctx ends; after an error they
// may be given back or not, and the call can be repeated. No policy decides.
func (l *StoredLimiter) Return(ctx context.Context, granted Result) (given bool, err error) {
	s, err := l.use(ctx, "return", 0)
	if err != nil {
		return false, err
	}
	defer s.release()
	if s.client.gate.Closed() {
		return false, s.operationError("return", ErrClosed)
	}
	spans := make([]span, len(granted.grant))
	for i, e := range granted.grant {
		spans[i].entry = e
	}
	given, err = s.takeBack(ctx, spans)
	return given, s.operationError("return", err)
}
