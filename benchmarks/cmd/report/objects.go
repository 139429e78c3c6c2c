//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// libraryClients are the clients of the packages on one server.
type libraryClients struct {
	rdb        *redis.Client
	locks      *redislock.Client
	limits     *ratelimit.Client
	semaphores *semaphore.Client
}

// use is one use of an object: what takes, and what gives back, if anything does.
type use func(ctx context.Context, name string) (giveBack func() error, err error)

func unlocking(l *redislock.Lock, err error) (func() error, error) {
	return func() error { return l.Unlock(context.Background()) }, err
}

type objectUse struct {
	what    string
	prepare func(ctx context.Context, name string) error // sets permits or a limit; may be nil
	use     use
}

func (c libraryClients) uses() []objectUse {
	long := redislock.WithLease(time.Minute)
	hour := ratelimit.PerHour(1000)
	releasing := func(g *semaphore.Grant, err error) (func() error, error) {
		return func() error { return g.Release(context.Background()) }, err
	}
	nothing := func(_ ratelimit.Result, err error) (func() error, error) { return nil, err }
	setting := func(_ bool, err error) error { return err }
	return []objectUse{
		{"`Mutex`", nil, func(ctx context.Context, name string) (func() error, error) {
			return unlocking(c.locks.Mutex(name, long).Lock(ctx))
		}},
		{"`Mutex`, `WithFencing`", nil, func(ctx context.Context, name string) (func() error, error) {
			return unlocking(c.locks.Mutex(name, long, redislock.WithFencing()).Lock(ctx))
		}},
		{"`FairMutex`", nil, func(ctx context.Context, name string) (func() error, error) {
			return unlocking(c.locks.FairMutex(name, long).Lock(ctx))
		}},
		{"`RWMutex`, reader", nil, func(ctx context.Context, name string) (func() error, error) {
			return unlocking(c.locks.RWMutex(name, long).RLock(ctx))
		}},
		{"`RWMutex`, writer", nil, func(ctx context.Context, name string) (func() error, error) {
			return unlocking(c.locks.RWMutex(name, long).Lock(ctx))
		}},
		{"`Semaphore`, 1 permit", func(ctx context.Context, name string) error {
			return setting(c.semaphores.Semaphore(name, 0).TrySetPermits(ctx, 100))
		}, func(ctx context.Context, name string) (func() error, error) {
			s := c.semaphores.Semaphore(name, 0)
			return releasing(s.Acquire(ctx, 1))
		}},
		{"`FairSemaphore`, 1 permit", func(ctx context.Context, name string) error {
			return setting(c.semaphores.FairSemaphore(name, 0).TrySetPermits(ctx, 100))
		}, func(ctx context.Context, name string) (func() error, error) {
			s := c.semaphores.FairSemaphore(name, 0)
			return releasing(s.Acquire(ctx, 1))
		}},
		{"`CountingSemaphore`, 1 permit", func(ctx context.Context, name string) error {
			return setting(c.semaphores.CountingSemaphore(name).TrySetPermits(ctx, 100))
		}, func(ctx context.Context, name string) (func() error, error) {
			s := c.semaphores.CountingSemaphore(name)
			return func() error { return s.Release(ctx, 1) }, s.Acquire(ctx, 1)
		}},
		{"`Limiter`", nil, func(ctx context.Context, name string) (func() error, error) {
			return nothing(c.limits.Limiter("limit", hour).Allow(ctx, name))
		}},
		{"`Limiter`, fixed windows", nil, func(ctx context.Context, name string) (func() error, error) {
			return nothing(c.limits.Limiter("limit", hour, ratelimit.WithAlgorithm(ratelimit.FixedWindow)).Allow(ctx, name))
		}},
		{"`Limiter`, sliding windows", nil, func(ctx context.Context, name string) (func() error, error) {
			return nothing(c.limits.Limiter("limit", hour, ratelimit.WithAlgorithm(ratelimit.SlidingWindow)).Allow(ctx, name))
		}},
		{"`StoredLimiter`, 1 grant", func(ctx context.Context, name string) error {
			return setting(c.limits.StoredLimiter(name).TrySetRate(ctx, hour))
		}, func(ctx context.Context, name string) (func() error, error) {
			return nothing(c.limits.StoredLimiter(name).Allow(ctx))
		}},
	}
}

// objects writes the keys, the memory and the commands of one use of an object of each kind.
func objects(to io.Writer) error {
	ctx := context.Background()
	server, err := startRedis()
	if err != nil {
		return err
	}
	defer server.stop()
	rdb := redis.NewClient(&redis.Options{Addr: server.addr})
	defer rdb.Close()
	c := libraryClients{rdb: rdb}
	if c.locks, err = redislock.New(rdb); err != nil {
		return err
	}
	if c.limits, err = ratelimit.New(rdb); err != nil {
		return err
	}
	if c.semaphores, err = semaphore.New(rdb); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(to, "| object | keys while in use | memory, B | keys after | round trips and commands to take | to give back |")
	_, _ = fmt.Fprintln(to, "|---|---:|---:|---:|---:|---:|")
	for i, u := range c.uses() {
		line, err := c.measure(ctx, u, fmt.Sprintf("object:%013d", i)) // names of 20 bytes
		if err != nil {
			return fmt.Errorf("%s: %w", u.what, err)
		}
		_, _ = fmt.Fprintf(to, "| %s | %s |\n", u.what, line)
	}
	return nil
}

// measure uses two objects, of which the first has the scripts loaded, and describes the use of the second.
func (c libraryClients) measure(ctx context.Context, u objectUse, name string) (string, error) {
	first := name + "first"
	if u.prepare != nil {
		if err := u.prepare(ctx, first); err != nil {
			return "", err
		}
	}
	back, err := u.use(ctx, first)
	if err == nil && back != nil {
		err = back()
	}
	if err != nil {
		return "", err
	}
	if err := c.rdb.FlushAll(ctx).Err(); err != nil {
		return "", err
	}
	if u.prepare != nil {
		if err := u.prepare(ctx, name); err != nil {
			return "", err
		}
		calls, err := c.rdb.Keys(ctx, "*:call:*").Result() // which go after a minute
		if err == nil && len(calls) > 0 {
			err = c.rdb.Unlink(ctx, calls...).Err()
		}
		if err != nil {
			return "", err
		}
	}
	begun, err := c.commands(ctx)
	if err != nil {
		return "", err
	}
	if back, err = u.use(ctx, name); err != nil {
		return "", err
	}
	took, err := c.commands(ctx)
	if err != nil {
		return "", err
	}
	keys, bytes, err := c.memory(ctx)
	if err != nil {
		return "", err
	}
	released := "–"
	if back != nil {
		if err := back(); err != nil {
			return "", err
		}
		given, err := c.commands(ctx)
		if err != nil {
			return "", err
		}
		released = given.since(took)
	}
	left, _, err := c.memory(ctx)
	return fmt.Sprintf("%d | %d | %d | %s | %s", keys, bytes, left, took.since(begun), released), err
}

// memory returns how many keys there are and what they take.
func (c libraryClients) memory(ctx context.Context) (keys int, bytes int64, err error) {
	all, err := c.rdb.Keys(ctx, "*").Result()
	for _, key := range all {
		var n int64
		if n, err = c.rdb.MemoryUsage(ctx, key, 0).Result(); err != nil {
			return 0, 0, err
		}
		bytes += n
	}
	return len(all), bytes, err
}

// executed are the scripts that were called so far, and the commands that these executed.
type executed struct{ trips, commands int }

func (e executed) since(before executed) string {
	return fmt.Sprintf("%d (%d)", e.trips-before.trips, e.commands-before.commands)
}

// ours are commands of this program, or of a connection.
const ours = " info flushall keys memory|usage hello client|setinfo client|maint_notifications ping select config|get" +
	" cluster|info script|load subscribe unsubscribe "

func (c libraryClients) commands(ctx context.Context) (e executed, err error) {
	info, err := c.rdb.Info(ctx, "commandstats").Result()
	fields := map[string]string{}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		fields[name] = value
	}
	for name, n := range commandStats(fields) {
		command, isCalls := strings.CutSuffix(name, ".calls")
		switch {
		case !isCalls || strings.Contains(ours, " "+command+" "):
		case command == "evalsha" || command == "eval":
			e.trips += int(n)
		default:
			e.commands += int(n)
		}
	}
	return e, err
}
