package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// findServer returns the address of the Redis to use: the one in REDIS_ADDR, after it has answered, or an
// embedded server.
func findServer(ctx context.Context, w *wheel.Wheel) (addr string, closeServer func(), err error) {
	if addr = os.Getenv("REDIS_ADDR"); addr == "" {
		return embedServer(w)
	}
	opts, err := redisOptions(addr)
	if err != nil {
		return "", nil, err
	}
	opts.ContextTimeoutEnabled, opts.MaxRetries = true, -1 // fail at once instead of retrying
	rdb := redis.NewClient(opts)
	defer rdb.Close()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := rdb.Ping(ctx).Err(); err != nil {
		return "", nil, fmt.Errorf("no answer from the Redis at REDIS_ADDR, %s: %w", opts.Addr, err)
	}
	fmt.Printf("Using the Redis at %s.\n", opts.Addr)
	return addr, func() {}, nil
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

// embedServer starts a server in this process. The server has no clock of its own: a timer on the wheel
// advances its time, and with it every TTL.
func embedServer(w *wheel.Wheel) (addr string, closeServer func(), err error) {
	server := miniredis.NewMiniRedis()
	server.SetTime(time.Now())
	server.ClockTTL(true)
	if err := server.Start(); err != nil {
		return "", nil, fmt.Errorf("embedded server: %w", err)
	}
	clock, err := w.Every(5*time.Millisecond, func() { server.SetTime(time.Now()) })
	if err != nil {
		server.Close()
		return "", nil, err
	}
	fmt.Printf("REDIS_ADDR is not set: using an embedded server at %s. A timer on the wheel advances its clock.\n",
		server.Addr())
	return server.Addr(), func() {
		clock.Stop()
		server.Close()
	}, nil
}
