package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/cogwheeltest"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// findServer returns the address of the Redis to use: the one in REDIS_ADDR, or an embedded server. Locks work there.
func findServer(ctx context.Context, w *wheel.Wheel) (addr string, closeServer func(), err error) {
	if addr = os.Getenv("REDIS_ADDR"); addr == "" {
		if addr, closeServer, err = cogwheeltest.Embed(); err != nil {
			return "", nil, err
		}
		fmt.Printf("REDIS_ADDR is not set: using an embedded server at %s.\n", addr)
		if err = checkServer(ctx, w, addr); err != nil {
			closeServer()
			return "", nil, fmt.Errorf("embedded server: %w", err)
		}
		return addr, closeServer, nil
	}
	if err := checkServer(ctx, w, addr); err != nil {
		return "", nil, fmt.Errorf("the Redis at REDIS_ADDR, %s: %w", addr, err)
	}
	fmt.Printf("Using the Redis at %s.\n", addr)
	return addr, func() {}, nil
}

// checkServer returns an error that says what is missing if locks cannot work with a Redis.
func checkServer(ctx context.Context, w *wheel.Wheel, addr string) error {
	opts, err := redisOptions(addr)
	if err != nil {
		return err
	}
	rdb := redis.NewClient(opts)
	defer rdb.Close()
	locks, err := redislock.New(rdb, redislock.WithWheel(w))
	if err != nil {
		return err
	}
	defer locks.Close(context.WithoutCancel(ctx))
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_, err = locks.Check(ctx, locks.Mutex("tour-check"))
	return err
}

// redisOptions returns the options for an address, which is host:port or a redis:// URL.
func redisOptions(addr string) (*redis.Options, error) {
	if !strings.Contains(addr, "://") {
		return &redis.Options{Addr: addr}, nil
	}
	opts, err := redis.ParseURL(addr)
	if err != nil {
		return nil, fmt.Errorf("REDIS_ADDR: %w", err)
	}
	return opts, nil
}
