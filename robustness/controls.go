package robustness

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/robustness/history"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// ControlKinds are wrong implementations, each of which a check has to find, and right ones of their scenarios.
var ControlKinds = []*Kind{
	{
		Name: "no-op lock", Capacity: 1,
		New: simple(func(l *simpleLocks, _ redis.UniversalClient, _ Settings) {
			l.acquire = func(context.Context, string, string) (bool, int64, error) { return true, 0, nil }
			l.release = func(context.Context, string, string) (bool, error) { return true, nil }
			l.renew = nil
			l.endless = true
		}),
	},
	{
		Name: "release without comparing values", Capacity: 1,
		New: simple(func(l *simpleLocks, rdb redis.UniversalClient, _ Settings) {
			l.release = func(ctx context.Context, key, _ string) (bool, error) {
				n, err := rdb.Del(ctx, key).Result()
				return n == 1, err
			}
		}),
	},
	{Name: "re-entry by a counter", Capacity: 1, Calls: enter.Hash(), New: simple(countEntries)},
	{
		Name: "renewal kept after the release", Capacity: 1,
		New: simple(func(l *simpleLocks, rdb redis.UniversalClient, s Settings) {
			l.outlive = true
			l.renew = func(ctx context.Context, key, value string) (bool, error) {
				n, err := setOrExpire.Run(ctx, rdb, []string{key}, value, s.Lease.Milliseconds()).Int()
				return n == 1, err
			}
		}),
	},
	{
		Name: "renewal stopped by an error", Capacity: 1,
		New: simple(func(l *simpleLocks, _ redis.UniversalClient, _ Settings) {
			l.stopOnError = true
		}),
	},
	{
		Name: "loss announced on an error", Capacity: 1,
		New: simple(func(l *simpleLocks, _ redis.UniversalClient, _ Settings) {
			l.endless = true
		}),
	},
	{
		Name: "fence by INCR", Capacity: 1, Fenced: true,
		New: simple(func(l *simpleLocks, rdb redis.UniversalClient, s Settings) {
			l.acquire = func(ctx context.Context, key, value string) (bool, int64, error) {
				keys := []string{key, key + ":fence"}
				token, err := setAndCount.Run(ctx, rdb, keys, value, s.Lease.Milliseconds()).Int64()
				return token > 0, token, err
			}
		}),
	},
	{
		Name: "lease in the client's time", Capacity: 1,
		New: simple(func(l *simpleLocks, rdb redis.UniversalClient, s Settings) {
			at := func() int64 { return time.Now().Add(s.Skew + s.Lease).UnixMilli() }
			l.acquire = func(ctx context.Context, key, value string) (bool, int64, error) {
				ok, err := setAt.Run(ctx, rdb, []string{key}, value, at()).Int()
				return ok == 1, 0, err
			}
			l.renew = func(ctx context.Context, key, value string) (bool, error) {
				ok, err := expireAt.Run(ctx, rdb, []string{key}, value, at()).Int()
				return ok == 1, err
			}
		}),
	},
	{
		Name: "lease below a millisecond", Capacity: 1,
		New: simple(func(l *simpleLocks, rdb redis.UniversalClient, _ Settings) {
			l.lease, l.endless, l.renew = 900*time.Microsecond, true, nil
			l.acquire = func(ctx context.Context, key, value string) (bool, int64, error) {
				ok, err := setThenExpire.Run(ctx, rdb, []string{key}, value, l.lease.Milliseconds()).Int()
				return ok == 1, 0, err
			}
		}),
	},
	{Name: "acquisition without WAIT", Capacity: 1, New: locks(
		func(c *redislock.Client, a Ask) mutex { return c.Mutex(a.Object) }, redislock.WithoutRenewal(),
	)},
	{Name: "mutex with WithReplicas", Capacity: 1, New: locks(
		func(c *redislock.Client, a Ask) mutex { return c.Mutex(a.Object) },
		redislock.WithoutRenewal(), redislock.WithReplicas(2, time.Second),
	)},
	{Name: "permits whose leases never end", Capacity: permits, New: simple(permitsThatStay)},
	{
		Name: "wake-up dropped on cancel", Capacity: 1,
		New: newTokenList,
		Prepare: func(ctx context.Context, rdb redis.UniversalClient, object string) error {
			return rdb.LPush(ctx, object, "token").Err()
		},
	},
	{
		Name: "limit on the client's clock", Capacity: 1,
		New: newLimit(func(rdb redis.UniversalClient, s Settings) allow {
			return func(ctx context.Context, object string) (bool, error) {
				until := time.Now().Add(s.Skew + controlBurst*controlPeriod).UnixMilli()
				n, err := countUntil.Run(ctx, rdb, []string{object}, until, controlBurst).Int()
				return n == 1, err
			}
		}),
	},
	{
		Name: "limit that begins anew twice", Capacity: 1,
		New: newLimit(func(rdb redis.UniversalClient, _ Settings) allow {
			return func(ctx context.Context, object string) (bool, error) {
				keys := []string{object, object + ":seen"}
				n, err := gcraTwice.Run(ctx, rdb, keys, controlPeriod.Microseconds(), controlBurst).Int()
				return n == 1, err
			}
		}),
	},
	{Name: "tasks claimed without a lease", Tasks: newSimpleTasks(func(q *simpleTasks) { q.noLease = true })},
	{Name: "tasks cancelled while they run", Tasks: newSimpleTasks(func(q *simpleTasks) { q.cancelsAll = true })},
	{Name: "tasks on the client's clock", Tasks: newSimpleTasks(func(q *simpleTasks) { q.clientsClock = true })},
	{Name: "limit", Capacity: 1, New: func(rdbs []redis.UniversalClient, w *wheel.Wheel, _ Settings) (Locker, error) {
		c, err := ratelimit.New(rdbs[0], ratelimit.WithWheel(w))
		if err != nil {
			return nil, err
		}
		k := c.Limiter("control", ratelimit.PerSecond(int64(time.Second/controlPeriod)).WithBurst(controlBurst))
		return limitLocks{func(ctx context.Context, object string) (bool, error) {
			r, err := k.Allow(ctx, object)
			return r.Allowed, err
		}, c.Close}, nil
	}},
}

var (
	setOrExpire = redis.NewScript(`
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then
	return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1`)
	setAndCount = redis.NewScript(`
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
	return 0
end
return redis.call('INCR', KEYS[2])`)
	setAt    = redis.NewScript(`return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PXAT', ARGV[2]) and 1 or 0`)
	expireAt = redis.NewScript(
		`return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIREAT', KEYS[1], ARGV[2]) or 0`)
	setThenExpire = redis.NewScript(`
if redis.call('SETNX', KEYS[1], ARGV[1]) == 0 then
	return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1`)
	enter = redis.NewScript(`
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
	return 0
end
redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1`)
	leave = redis.NewScript(`
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
	return 0
end
if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) <= 0 then
	redis.call('DEL', KEYS[1])
end
return 1`)
)

// countEntries makes a hold a counter, which an acquisition that is executed twice increments twice.
func countEntries(l *simpleLocks, rdb redis.UniversalClient, _ Settings) {
	l.lease, l.renew = time.Minute, nil // nothing renews it, so it has to be long
	l.poll = 200 * time.Millisecond     // so that most calls acquire
	run := func(ctx context.Context, script *redis.Script, key, value string) (bool, error) {
		n, err := script.Run(ctx, rdb, []string{key}, value, l.lease.Milliseconds()).Int()
		return n == 1, err
	}
	l.acquire = func(ctx context.Context, key, value string) (bool, int64, error) {
		ok, err := run(ctx, enter, key, value)
		return ok, 0, err
	}
	l.release = func(ctx context.Context, key, value string) (bool, error) { return run(ctx, leave, key, value) }
}

// takePermits takes permits. What is taken is a member of a sorted set, which begins with its number of permits, and
// whose score is the end of its lease. The script never removes those that have ended.
var takePermits = redis.NewScript(`
local taken = 0
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
	taken = taken + string.match(member, '^%d+')
end
if taken + string.match(ARGV[1], '^%d+') > tonumber(ARGV[3]) then
	return 0
end
local now = redis.call('TIME')
redis.call('ZADD', KEYS[1], now[1] * 1000 + math.floor(now[2] / 1000) + ARGV[2], ARGV[1])
return 1`)

func permitsThatStay(l *simpleLocks, rdb redis.UniversalClient, s Settings) {
	l.values = func(ask Ask) string { return fmt.Sprintf("%d:%s", ask.N, rand.Text()) }
	l.acquire = func(ctx context.Context, key, value string) (bool, int64, error) {
		n, err := takePermits.Run(ctx, rdb, []string{key}, value, s.Lease.Milliseconds(), permits).Int()
		return n == 1, 0, err
	}
	l.release = func(ctx context.Context, key, value string) (bool, error) {
		n, err := rdb.ZRem(ctx, key, value).Result()
		return n == 1, err
	}
	l.renew = nil
}

// tokenList is a lock whose token is the element of a list: waiters wait for it to appear. A waiter that gives up
// leaves its request behind, and what that gets is dropped.
type tokenList struct {
	rdb      redis.UniversalClient
	requests sync.WaitGroup
	closed   atomic.Bool
}

func newTokenList(rdbs []redis.UniversalClient, _ *wheel.Wheel, _ Settings) (Locker, error) {
	return &tokenList{rdb: rdbs[0]}, nil
}

func (l *tokenList) Acquire(ctx context.Context, ask Ask) (Hold, error) {
	if ask.Try {
		err := l.rdb.LPop(ctx, ask.Object).Err()
		if errors.Is(err, redis.Nil) {
			return nil, ErrRefused
		}
		return &listHold{l: l, key: ask.Object}, err
	}
	got := make(chan error, 1)
	l.requests.Go(func() { got <- l.await(ctx, ask.Object) })
	select {
	case err := <-got:
		return &listHold{l: l, key: ask.Object}, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// await gets the token, which is lost if its caller has left meanwhile.
func (l *tokenList) await(ctx context.Context, key string) error {
	for ctx.Err() == nil {
		if l.closed.Load() {
			return net.ErrClosed
		}
		err := l.rdb.BLPop(context.WithoutCancel(ctx), time.Second, key).Err()
		if !errors.Is(err, redis.Nil) {
			return err
		}
	}
	return ctx.Err()
}

func (l *tokenList) Close(context.Context) error {
	l.closed.Store(true)
	l.requests.Wait()
	return nil
}

type listHold struct {
	l    *tokenList
	key  string
	gone atomic.Bool
}

func (h *listHold) Valid() bool           { return !h.gone.Load() }
func (h *listHold) Told() <-chan struct{} { return nil }
func (h *listHold) Token() int64          { return 0 }

func (h *listHold) Release(ctx context.Context) (history.Step, error) {
	h.gone.Store(true)
	if err := h.l.rdb.LPush(ctx, h.key, "token").Err(); err != nil {
		return history.Open, err
	}
	return history.Released, nil
}

// The limit of the controls.
const (
	controlBurst  = 20
	controlPeriod = 20 * time.Millisecond // of one permit
)

var (
	// countUntil counts in a window whose end is by the clock of its first client.
	countUntil = redis.NewScript(`
if redis.call('INCR', KEYS[1]) == 1 then
	redis.call('PEXPIREAT', KEYS[1], ARGV[1])
end
return tonumber(redis.call('GET', KEYS[1]) or 0) <= tonumber(ARGV[2]) and 1 or 0`)
	// gcraTwice notices after a second request that it has lost its data, and begins anew then, a second time.
	gcraTwice = redis.NewScript(`
local time = redis.call('TIME')
local now, period, burst = time[1] * 1000000 + time[2], tonumber(ARGV[1]), tonumber(ARGV[2])
local at = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now)
if redis.call('INCR', KEYS[2]) == burst + 1 then
	at = now
end
if at + period > now + burst * period then
	return 0
end
redis.call('SET', KEYS[1], string.format('%d', at + period))
return 1`)
)

// allow asks for a permit of a limit.
type allow func(ctx context.Context, object string) (bool, error)

// limitLocks lets callers of locks ask for permits, which they hold for no time.
type limitLocks struct {
	allow allow
	close func(context.Context) error
}

func newLimit(of func(redis.UniversalClient, Settings) allow) newLocker {
	return func(rdbs []redis.UniversalClient, _ *wheel.Wheel, s Settings) (Locker, error) {
		return limitLocks{of(rdbs[0], s), func(context.Context) error { return nil }}, nil
	}
}

func (l limitLocks) Close(ctx context.Context) error { return l.close(ctx) }

func (l limitLocks) Acquire(ctx context.Context, ask Ask) (Hold, error) {
	ok, err := l.allow(ctx, ask.Object)
	if err == nil && !ok {
		err = ErrRefused
	}
	if err != nil {
		return nil, err
	}
	return spent{}, nil
}

type spent struct{}

func (spent) Valid() bool                                   { return false }
func (spent) Told() <-chan struct{}                         { return nil }
func (spent) Token() int64                                  { return 0 }
func (spent) Release(context.Context) (history.Step, error) { return history.Released, nil }
