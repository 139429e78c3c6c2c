package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/keys"
)

// Scope determines which grants a limit counts together.
type Scope uint8

const (
	// Overall counts the grants of all Clients together.
	Overall Scope = iota
	// PerClient counts the grants of each Client separately, by the same limit. As in Redisson, the counts are
	// in Redis, under keys that end in a random id of the Client. They expire a minute after the last entry has
	// left the log, so that the counts of ended processes do not stay.
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

// StoredLimiter limits one name by a sliding log: in every interval of length Per, wherever it begins, at most
// Rate permits are granted. Delete, and SetRate and UpdateRate without WithState, forget the previous grants, so each
// of them in an interval allows another whole Rate. The limit and its scope are stored in Redis and can be changed at
// any time, for all processes. Keys and entries are those of Redisson's RRateLimiter from version 3.13.3 on, except
// 3.16.4 to 3.16.8, so services in Java and Go share a limit. A StoredLimiter is safe for concurrent use.
//
// TrySetRate, SetRate, UpdateRate, Config and Delete block for one round trip, at most until ctx ends; no
// policy decides. After an error the change may have been made. This process sees a change at once, others see
// it within about a second. For errors see AllowN; an invalid limit or option returns a *cogwheel.InvalidError.
//
// A name may contain a hash tag in braces. As in Redisson, the names a and {a} have separate limits but share
// their grants, because both keep them in {a}:value and {a}:permits: use only one of them.
type StoredLimiter struct {
	client *Client
	name   string
	err    error
}

// StoredLimiter returns the limiter with the given name. It does not talk to Redis, and the Client keeps
// nothing for it. A name has 1 to 65536 bytes. A name that contains a brace must contain a hash tag such as
// {user:7}, because all keys of a limiter must be in one cluster slot. If the name is invalid, Err and all
// methods return a *cogwheel.InvalidError.
func (c *Client) StoredLimiter(name string) *StoredLimiter {
	l := &StoredLimiter{client: c, name: name}
	if refused, ok := errors.AsType[*scripts.NameError](scripts.CheckName(name)); ok {
		l.err = argument.Error("name", scripts.Quote(name), refused.Reason)
	}
	return l
}

// Name returns the name of the limiter.
func (l *StoredLimiter) Name() string { return l.name }

// Err returns the *cogwheel.InvalidError of an invalid name, or nil.
func (l *StoredLimiter) Err() error { return l.err }

// Config is a limit as it is stored in Redis.
type Config struct {
	Limit     // Burst is equal to Rate
	Scope     Scope
	KeepAlive time.Duration // the limiter expires, with its limit, after this time without use; 0 for never
}

// SetOption configures TrySetRate, SetRate and UpdateRate. Without options, SetRate and UpdateRate keep the scope, end
// the keep-alive, and forget the previous grants. If an option is given twice, the last one counts.
type SetOption interface{ applySet(*setConfig) }

type setConfig struct {
	scope     *Scope // nil: unchanged
	keepAlive time.Duration
	keepState bool
}

type setOptionFunc func(*setConfig)

func (f setOptionFunc) applySet(c *setConfig) { f(c) }

// WithScope sets the scope. By default the scope does not change; a limit that is not set yet gets Overall.
func WithScope(s Scope) SetOption { return setOptionFunc(func(c *setConfig) { c.scope = &s }) }

// WithKeepAlive makes the limiter expire, with its limit, when it was not used for d: whole milliseconds, at
// least the period of the limit. Each request for permits that reaches Redis is a use, even if it is denied;
// Peek is not. By default the limiter does not expire, even if an earlier limit had a WithKeepAlive.
func WithKeepAlive(d time.Duration) SetOption {
	return setOptionFunc(func(c *setConfig) { c.keepAlive = d })
}

// WithState keeps the previous grants: they count under the new limit. Those that are older than the previous interval
// have left the log, so they do not count under a longer one. By default, and always if the scope changes, all are
// forgotten. It has no effect on TrySetRate.
func WithState() SetOption { return setOptionFunc(func(c *setConfig) { c.keepState = true }) }

// TrySetRate sets the limit if none is set, and reports whether it did.
func (l *StoredLimiter) TrySetRate(ctx context.Context, limit Limit, opts ...SetOption) (bool, error) {
	return l.set(ctx, "try", limit, opts)
}

// SetRate sets the limit. Unless WithState is given, it forgets the previous grants, so that a whole Rate can be
// granted at once; with the scope PerClient, those of all Clients.
func (l *StoredLimiter) SetRate(ctx context.Context, limit Limit, opts ...SetOption) error {
	_, err := l.set(ctx, "set", limit, opts)
	return err
}

// UpdateRate sets the limit, as SetRate does, if a limit is set already, and reports whether it did. Otherwise
// it changes nothing.
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
	limit = limit.whole()
	switch err := algo.Limit(limit).ValidateWindow(); {
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
	return manage(ctx, l, "set", func(ctx context.Context, s *keys.State) (bool, error) {
		old := s.Mark()
		set, err := scripts.Flag(scripts.RateSet.Run(ctx, l.client.rdb, algo.LogKeys(l.name), mode, limit.Rate,
			limit.Per.Milliseconds(), scope, cfg.keepAlive.Milliseconds(), algo.Flag(cfg.keepState)))
		if err != nil {
			return false, keys.Explain(ctx, err)
		}
		if !set {
			old = 0
		}
		if set && cfg.scope != nil {
			s.Algorithm.SetPerClient(*cfg.scope == PerClient)
		}
		s.LimitChanged(old)
		return set, nil
	})
}

// Config returns the limit as it is stored in Redis, or an error that matches ErrNotSet.
func (l *StoredLimiter) Config(ctx context.Context) (Config, error) {
	return manage(ctx, l, "config", func(ctx context.Context, _ *keys.State) (Config, error) {
		fields, err := l.client.rdb.HGetAll(ctx, l.name).Result()
		if err != nil {
			return Config{}, keys.Explain(ctx, err)
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
			Limit:     Limit{Rate: rate, Per: algo.Millis(interval), Burst: rate},
			Scope:     Scope(scope),
			KeepAlive: algo.Millis(number("keepAliveTime")),
		}, nil
	})
}

// Delete removes the limit and the grants, and reports whether there were any. Waiters fail with ErrNotSet.
func (l *StoredLimiter) Delete(ctx context.Context) (bool, error) {
	return manage(ctx, l, "delete", func(ctx context.Context, s *keys.State) (bool, error) {
		old := s.Mark()
		n, err := l.client.rdb.Del(ctx, algo.LogKeys(l.name)...).Result()
		if err != nil {
			return false, keys.Explain(ctx, err)
		}
		s.LimitChanged(old)
		return n > 0, nil
	})
}

// use checks the arguments of a call and returns the state of the name.
func (l *StoredLimiter) use(ctx context.Context, operation string, n int64) (*keys.State, error) {
	switch {
	case l.err != nil:
		return nil, l.err
	case ctx == nil:
		return nil, argument.Nil("context")
	case n < 0:
		return nil, argument.Error("n", n, "must not be negative")
	case n > MaxRate:
		return nil, keys.CallError(operation, l.name, fmt.Errorf("%w: %d permits", ErrExceedsLimit, n))
	}
	return l.client.core.Use(keys.ID{Options: keys.Options{Algorithm: logAlgorithm}, Key: l.name}, nil), nil
}

// manage runs f, which talks to Redis, and returns when f has returned or ctx ends, whatever Redis does.
func manage[T any](
	ctx context.Context, l *StoredLimiter, operation string, f func(context.Context, *keys.State) (T, error),
) (T, error) {
	s, err := l.use(ctx, operation, 0)
	if err != nil {
		var none T
		return none, err
	}
	return inside(ctx, s, operation, func(ctx context.Context) (T, error) { return f(ctx, s) })
}

// Allow is AllowN of one permit.
func (l *StoredLimiter) Allow(ctx context.Context) (Result, error) { return l.AllowN(ctx, 1) }

// AllowN takes n permits if they are available, and does not wait for them. A denial is a Result, not an error.
// Blocking, the policy, n = 0 and errors are those of Limiter.AllowN, except that ErrExceedsLimit means that n
// is above the rate, and ErrNotSet, also for n = 0, that no limit is set. go-redis may send the script again
// after a lost reply; it takes the permits once.
func (l *StoredLimiter) AllowN(ctx context.Context, n int64) (Result, error) {
	began := l.client.start()
	s, err := l.use(ctx, "allow", n)
	if err != nil {
		return Result{}, l.refused(ctx, l.subject(n, nil), err)
	}
	defer s.Release()
	r, err := result(s.Allow(ctx, n))
	if !l.client.counted(s, n, &r, err) {
		l.client.report(ctx, l.subject(n, s), &r, err, began)
	}
	return r, err
}

// subject returns the subject of a call, for reports.
func (l *StoredLimiter) subject(n int64, s *keys.State) subject {
	return subject{kind: KindStoredLimiter, name: l.name, n: n, state: s}
}

// refused reports a call that was refused before it had a state.
func (l *StoredLimiter) refused(ctx context.Context, of subject, err error) error {
	l.client.report(ctx, of, &Result{}, err, l.client.start())
	return err
}

// Peek returns the answer that Redis would give to Allow now, but takes nothing; see Limiter.Peek. For errors
// see AllowN.
func (l *StoredLimiter) Peek(ctx context.Context) (Result, error) {
	s, err := l.use(ctx, "peek", 0)
	if err != nil {
		return Result{}, err
	}
	defer s.Release()
	return result(s.Peek(ctx))
}

// AllowUpTo takes as many permits as are available, at most n. n may be above the rate; see
// Limiter.AllowUpTo. For errors see AllowN.
func (l *StoredLimiter) AllowUpTo(ctx context.Context, n int64) (Result, error) {
	n = min(n, MaxRate)
	began := l.client.start()
	s, err := l.use(ctx, "allow up to", n)
	if err != nil {
		return Result{}, l.refused(ctx, l.subject(n, nil), err)
	}
	defer s.Release()
	r, err := result(s.UpTo(ctx, n))
	l.client.report(ctx, l.subject(n, s), &r, err, began)
	return r, err
}

// Wait is WaitN of one permit.
func (l *StoredLimiter) Wait(ctx context.Context) error { return l.WaitN(ctx, 1) }

// WaitN blocks until n permits are taken, or until ctx ends. n = 0 returns at once. Order, the policy and
// errors are those of Limiter.WaitN, except that ErrExceedsLimit means that n is above the rate, and ErrNotSet
// that no limit is set, also if that happens during the wait.
//
// Entries are added to the log up to 20 ms and two round trips before their permits can be used. The entry of a
// waiter that leaves serves the next waiter if that waits for exactly as many permits; otherwise it is removed
// from the log.
func (l *StoredLimiter) WaitN(ctx context.Context, n int64) error {
	s, err := l.use(ctx, "wait", n)
	if err != nil {
		return l.refused(ctx, l.subject(n, nil).waiting(), err)
	}
	defer s.Release()
	return l.client.wait(ctx, s, l.subject(n, s).waiting())
}

// WaitFunc is WaitN without blocking, as Limiter.WaitFunc is.
func (l *StoredLimiter) WaitFunc(ctx context.Context, n int64, f func(error)) (cancel func()) {
	argument.MustCall(f == nil)
	s, err := l.use(ctx, "wait", n)
	if err != nil {
		return l.client.refuse(f, l.refused(ctx, l.subject(n, nil).waiting(), err))
	}
	return l.client.waitFunc(ctx, s, l.subject(n, s).waiting(), f)
}

// Reserve takes n permits now for use after the delay of the Reservation, and does not wait for that time; see
// Limiter.Reserve. In Redis a reservation is an entry with a time in the future, which Redisson counts like any
// other.
func (l *StoredLimiter) Reserve(ctx context.Context, n int64) (*Reservation, error) {
	s, err := l.use(ctx, opReserve, n)
	if err != nil {
		return nil, l.refused(ctx, l.subject(n, nil), err)
	}
	defer s.Release()
	return l.client.reserve(ctx, s, l.subject(n, s), 0)
}

// TryReserve is AllowN for a cost that is known only later; see Limiter.TryReserve. For errors see AllowN.
func (l *StoredLimiter) TryReserve(ctx context.Context, n int64) (Result, error) {
	began := l.client.start()
	s, err := l.use(ctx, opReserve, n)
	if err != nil {
		return Result{}, l.refused(ctx, l.subject(n, nil), err)
	}
	defer s.Release()
	r, err := tryReserve(ctx, s, n, chargeOf(s, algo.Span{N: n}, n, 0))
	l.client.report(ctx, l.subject(n, s), &r, err, began)
	return r, err
}

// Return gives back the permits of a Result of Allow, AllowN or AllowUpTo of this StoredLimiter, and reports
// whether they were still in the log. Others can use them at once. A second call, or the Result of a denial, of the
// policy or of another limiter, finds nothing to give back. Permits of TryReserve, which a Limiter and an All have too,
// are given back by Reservation.Cancel. Return blocks for one round trip, at most until ctx ends or the time of
// WithTimeout has passed. After an error the permits may have been given back, and the call can be repeated. No policy
// decides.
func (l *StoredLimiter) Return(ctx context.Context, granted Result) (given bool, err error) {
	s, err := l.use(ctx, "return", 0)
	if err != nil {
		return false, err
	}
	defer s.Release()
	if s.Keys.Gate.Closed() {
		return false, s.OperationError("return", ErrClosed)
	}
	spans := make([]algo.Span, len(granted.grant))
	for i, e := range granted.grant {
		spans[i].Entry = e
	}
	given, err = s.TakeBack(ctx, spans)
	return given, s.OperationError("return", err)
}
