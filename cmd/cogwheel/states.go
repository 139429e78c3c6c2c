package main

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// withLocks calls f with a client for locks and closes it.
func (t *tool) withLocks(ctx context.Context, f func(*redislock.Client) error) error {
	c, err := redislock.New(t.rdb, redislock.WithLogger(quiet()))
	if err != nil {
		return err
	}
	return errors.Join(f(c), c.Close(context.WithoutCancel(ctx)))
}

// mutexOf returns the lock of a kind. That of a read/write mutex is one side of it: the writer's if the holder
// is a writer.
func mutexOf(c *redislock.Client, name, kind string, writer bool) *redislock.Mutex {
	switch {
	case kind == kindFair:
		return c.FairMutex(name)
	case kind == kindRW && writer:
		return c.RWMutex(name).Writer()
	case kind == kindRW:
		return c.RWMutex(name).Reader()
	case kind == kindString:
		return c.Mutex(name, redislock.WithStringKey())
	}
	return c.Mutex(name)
}

// lock returns the state of a lock.
func (t *tool) lock(ctx context.Context, kind string) (object, error) {
	found := &lockState{Holders: []holder{}}
	err := t.withLocks(ctx, func(c *redislock.Client) error {
		s, err := mutexOf(c, t.name, kind, false).State(ctx)
		if err != nil {
			return err
		}
		found.Held, found.TTL, found.Token = s.Locked, millisOf(s.TTL), s.Token
		for _, h := range s.Holders {
			found.Holders = append(found.Holders, holder{ID: h.ID, Metadata: h.Metadata})
		}
		for _, w := range s.Waiting {
			found.Waiting = append(found.Waiting, holder{ID: w.ID, Metadata: w.Metadata})
		}
		return nil
	})
	switch kind {
	case kindRW:
		found.Subscribers = t.waiting(ctx, scripts.RWChannel(t.name))
		if err == nil {
			err = t.addReaders(ctx, found)
		}
	case kindMutex, kindString:
		found.Subscribers = t.waiting(ctx, scripts.LockChannel(t.name))
	}
	o := object{Kind: kind, Lock: found}
	if kind == kindMutex && !found.Held {
		o.Note = "or the writer of a read/write mutex: only the last token is left"
	}
	return o, err
}

// addReaders adds the mode, and the lease of each reader.
func (t *tool) addReaders(ctx context.Context, s *lockState) error {
	mode, err := t.rdb.HGet(ctx, t.name, "mode").Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	if s.Mode = mode; mode != "read" {
		return nil
	}
	pipe := t.rdb.Pipeline()
	leases := make([]*redis.Cmd, len(s.Holders))
	for i, h := range s.Holders {
		leases[i] = redis.NewCmd(ctx, "pttl", scripts.ReadTimeout(t.name, h.ID))
		_ = pipe.Process(ctx, scripts.Once(leases[i])) // only queues
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	for i, lease := range leases {
		ttl, _ := lease.Int64()     // Exec returns the errors
		left := millis(max(0, ttl)) // of a reader that died there is no key
		s.Holders[i].TTL = &left
	}
	return nil
}

// withSemaphores calls f with a client for semaphores and closes it.
func (t *tool) withSemaphores(ctx context.Context, f func(*semaphore.Client) error) error {
	c, err := semaphore.New(t.rdb, semaphore.WithLogger(quiet()))
	if err != nil {
		return err
	}
	return errors.Join(f(c), c.Close(context.WithoutCancel(ctx)))
}

// semaphore returns the state of a semaphore.
func (t *tool) semaphore(ctx context.Context, kind string, seen traces) (object, error) {
	found := &permitState{TTL: millisOf(seen.ttl), Permits: []permit{}}
	o := object{Kind: kind, Permits: found}
	if kind == kindFairSem {
		ttl, err := t.rdb.PTTL(ctx, scripts.SuffixName(t.name, "fair:permits")).Result()
		if err != nil {
			return o, err
		}
		found.TTL = millisOf(ttl)
	} else {
		found.Subscribers = t.subscribers(ctx, scripts.SemChannel(t.name))
	}
	return o, t.withSemaphores(ctx, func(c *semaphore.Client) error {
		sem := c.Semaphore(t.name, 0)
		if kind == kindFairSem {
			sem = c.FairSemaphore(t.name, 0)
		}
		s, err := sem.State(ctx)
		if err != nil {
			return err
		}
		found.Set, found.Free, found.Held, found.Token = s.IsSet, s.Free, &s.Held, s.Token
		if kind == kindFairSem && s.Waiting >= 0 {
			found.Waiting = &s.Waiting
		}
		for _, p := range s.Permits {
			found.Permits = append(found.Permits, permit{p.ID, millisOf(p.Lease)})
		}
		return nil
	})
}

// counting returns the state of a counting semaphore.
func (t *tool) counting(ctx context.Context, seen traces) (object, error) {
	free, err := strconv.ParseInt(seen.value, 10, 64)
	return object{
		Kind: kindCounting,
		Note: "or a semaphore whose permits were not used for a day",
		Permits: &permitState{
			Set: true, Free: free, TTL: millisOf(seen.ttl), Permits: []permit{},
			Subscribers: t.subscribers(ctx, scripts.SemChannel(t.name)),
		},
	}, err
}

// withLimits calls f with a client for rate limits and closes it. Its decisions may take as long as the flags say.
func (t *tool) withLimits(ctx context.Context, f func(*ratelimit.Client) error) error {
	return t.withLimitsOf(ctx, f, ratelimit.WithTimeout(max(t.timeout, time.Millisecond)))
}

func (t *tool) withLimitsOf(ctx context.Context, f func(*ratelimit.Client) error, opts ...ratelimit.Option) error {
	c, err := ratelimit.New(t.rdb, append(opts, ratelimit.WithLogger(quiet()))...)
	if err != nil {
		return err
	}
	return errors.Join(f(c), c.Close(context.WithoutCancel(ctx)))
}

// storedLimiter returns the state of a StoredLimiter.
func (t *tool) storedLimiter(ctx context.Context) (object, error) {
	found := &limitState{}
	err := t.withLimits(ctx, func(c *ratelimit.Client) error {
		l := c.StoredLimiter(t.name)
		cfg, err := l.Config(ctx)
		if err != nil {
			return err
		}
		keepAlive := millisOf(cfg.KeepAlive)
		if keepAlive == 0 {
			keepAlive = -1
		}
		found.Rate, found.Burst, found.Per = cfg.Rate, cfg.Burst, short(cfg.Per)
		found.KeepAlive, found.Scope = &keepAlive, cfg.Scope.String()
		if cfg.Scope == ratelimit.PerClient {
			return nil
		}
		r, err := l.Peek(ctx)
		found.left(r)
		return err
	})
	o := object{Kind: kindStoredLimiter, Limit: found}
	if found.Scope == ratelimit.PerClient.String() {
		o.Note = "each process has a count of its own"
	}
	return o, err
}

// left notes what is left of a limit.
func (s *limitState) left(r ratelimit.Result) {
	retry, full := millisOf(r.RetryAfter), millisOf(r.ResetAfter)
	s.Remaining, s.Retry, s.Full = &r.Remaining, &retry, &full
}

// limiter returns the state of a key of a Limiter, as far as Redis knows it without the limit.
func (t *tool) limiter(ctx context.Context, kind string) (object, error) {
	pipe := t.rdb.Pipeline()
	value, ttl := pipe.Get(ctx, t.name), pipe.PTTL(ctx, t.name)
	_, err := pipe.Exec(ctx)
	if errors.Is(err, redis.Nil) {
		err = nil
	}
	return limiterState(t.name, kind, traces{value: value.Val(), ttl: ttl.Val()}), err
}

// slidingUsed estimates the used permits of a sliding window, as sliding_state.lua does. The state expires when
// none of its permits count, so ttl, in milliseconds, tells which window is the current one and how much is left of it.
func slidingUsed(state string, ttl int64) int64 {
	var n [4]int64
	if parts := slidingState.FindStringSubmatch(state); parts != nil {
		for i := range n {
			n[i], _ = strconv.ParseInt(parts[1+i], 10, 64)
		}
	}
	previous, current, length, owed := n[0], n[1], max(1, n[2]), n[3]
	left := ttl - length // of the window of the last grant
	if owed > 0 {
		left -= length
	}
	for ; left <= 0 && ttl > 0; left += length {
		previous, current, owed = current, owed, 0
	}
	current, left = current+owed, max(0, min(length, left))
	return current + int64(math.Ceil(float64(previous)*float64(left)/float64(length))) // exact below 2^53
}

// peek asks what is left of a key of a Limiter whose limit the flags tell.
func (t *tool) peek(ctx context.Context) (object, error) {
	name, err := t.limiterName()
	if err != nil {
		return object{}, err
	}
	n, per, err := parseRate(t.rate)
	if err != nil {
		return object{}, err
	}
	if n == 0 {
		return object{}, usageError("--rate " + t.rate + " denies every request: Redis is not asked")
	}
	l := ratelimit.Limit{Rate: n, Per: per, Burst: n}
	if t.burst != 0 {
		l.Burst = t.burst
	}
	o := object{Kind: limiterKinds[name.algorithm], Limit: &limitState{Rate: l.Rate, Per: short(l.Per), Burst: l.Burst}}
	return o, t.withLimits(ctx, func(c *ratelimit.Client) error {
		k := limiterOf(c, name, l)
		if err := k.Err(); err != nil {
			return usageError(err.Error())
		}
		o.Limit.Key = k.RedisKey(name.key)
		r, err := k.Peek(ctx, name.key)
		o.Limit.left(r)
		return err
	})
}

func limiterOf(c *ratelimit.Client, name limiterName, l ratelimit.Limit) *ratelimit.Limiter {
	opts := []ratelimit.LimiterOption{ratelimit.WithAlgorithm(name.algorithm)}
	if name.tag != "" {
		opts = append(opts, ratelimit.WithHashTag(name.tag))
	}
	return c.Limiter(name.prefix, l, opts...)
}

// redisKey returns the key in Redis of the key that the flags and the name tell.
func (t *tool) redisKey(ctx context.Context) (key string, err error) {
	err = t.withLimits(ctx, func(c *ratelimit.Client) error {
		name := limiterName{prefix: t.prefix, algorithm: t.algorithm}
		k := limiterOf(c, name, ratelimit.PerSecond(1)) // the key does not depend on the limit
		if err := k.Err(); err != nil {
			return usageError(err.Error())
		}
		key = k.RedisKey(t.name)
		return nil
	})
	return key, err
}

const noLimiterKey = "a key of a Limiter has the form PREFIX:{KEY}; or give --prefix PREFIX KEY"

// limiterName returns the name of a key of a Limiter, with its parts as a service passes them.
func (t *tool) limiterName() (limiterName, error) {
	if t.prefix != "" {
		return limiterName{prefix: t.prefix, key: t.name, algorithm: t.algorithm}, nil
	}
	name, ok := parseLimiter(t.name)
	if !ok {
		return name, usageError(noLimiterKey)
	}
	var plain, plainTag bool
	name.key, plain = unescape(name.key)
	name.tag, plainTag = unescape(name.tag)
	if !plain || !plainTag {
		return name, usageError("the key is in Redis as a hash: give --prefix PREFIX and the key itself")
	}
	return name, nil
}

// isLock and the like say which command shows an object.
func (o object) isLock() bool      { return o.Lock != nil }
func (o object) isSemaphore() bool { return o.Permits != nil }
func (o object) isLimit() bool     { return o.Limit != nil }
func (o object) isQueue() bool     { return o.Queue != nil }

// only returns the objects that satisfy f.
func only(found []object, f func(object) bool) []object {
	return slices.DeleteFunc(found, func(o object) bool { return !f(o) })
}
