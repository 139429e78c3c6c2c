package semaphores_test

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/redis/go-redis/v9"
)

// retry is how long a waiter that polls pauses between two looks: the shortest that makes sense on loopback.
const retry = time.Millisecond

// The semaphores that most services write for themselves: one script to try, one to give back, and each
// waiter on its own tries again and again. Nothing is announced, there is no order, and a retried
// command may count twice.
var (
	takeCount = redis.NewScript(`
if tonumber(redis.call('GET', KEYS[1]) or 0) < tonumber(ARGV[1]) then return 0 end
redis.call('DECRBY', KEYS[1], ARGV[1])
return 1`)

	takeLease = redis.NewScript(`
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[3])
return 1`)
)

func pollCount(rdb *redis.Client, name string) acquire {
	return func(ctx context.Context) (func() error, error) {
		err := pollUntil(ctx, func() (bool, error) { return takeCount.Run(ctx, rdb, []string{name}, 1).Bool() })
		return func() error { return rdb.Incr(ctx, name).Err() }, err
	}
}

func pollLease(rdb *redis.Client, name string, permits int) acquire {
	return func(ctx context.Context) (func() error, error) {
		id := rand.Text()
		err := pollUntil(ctx, func() (bool, error) {
			return takeLease.Run(ctx, rdb, []string{name}, permits, (30 * time.Second).Milliseconds(), id).Bool()
		})
		return func() error { return rdb.ZRem(ctx, name, id).Err() }, err
	}
}

func pollUntil(ctx context.Context, try func() (bool, error)) error {
	for {
		if ok, err := try(); err != nil || ok {
			return err
		}
		select {
		case <-time.After(retry):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
