package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// clients are what a process makes once: a wheel, a Redis client, and on them a client of each package.
type clients struct {
	wheel      *wheel.Wheel
	locks      *redislock.Client
	limits     *ratelimit.Client
	semaphores *semaphore.Client

	closers []func(context.Context) error // called in reverse, like deferred functions
}

// connect makes the clients. addr is the host:port of a Redis, or empty for an embedded server.
func connect(ctx context.Context, addr string, logger *slog.Logger) (_ *clients, err error) {
	c := &clients{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close(context.WithoutCancel(ctx)))
		}
	}()
	if c.wheel, err = wheel.New(wheel.WithLogger(logger)); err != nil {
		return nil, err
	}
	c.deferClose(func(ctx context.Context) error {
		_, err := c.wheel.Stop(ctx)
		return err
	})

	if addr == "" {
		if addr, err = c.embedServer(); err != nil {
			return nil, err
		}
		logger.Info("REDIS_ADDR is not set: using an embedded server", "redis", addr)
	}
	// The timeouts bound how long a call without a deadline takes while Redis hangs: docs/operations.md, redis.Options.
	rdb := redis.NewClient(&redis.Options{
		Addr: addr, DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second,
		MaxRetries: 1, DialerRetries: 1, ContextTimeoutEnabled: true,
	})
	c.deferClose(func(context.Context) error { return rdb.Close() })
	if err = rdb.Ping(ctx).Err(); err != nil {
		return nil, fmt.Errorf("no answer from the Redis at %s: %w", addr, err)
	}

	c.locks, err = redislock.New(rdb, redislock.WithWheel(c.wheel), redislock.WithLogger(logger))
	if err != nil {
		return nil, err
	}
	c.deferClose(c.locks.Close)
	c.limits, err = ratelimit.New(rdb, ratelimit.WithWheel(c.wheel), ratelimit.WithLogger(logger),
		ratelimit.WithPolicy(ratelimit.FailOpen())) // while Redis is down, serve without limits
	if err != nil {
		return nil, err
	}
	c.deferClose(c.limits.Close)
	c.semaphores, err = semaphore.New(rdb, semaphore.WithWheel(c.wheel), semaphore.WithLogger(logger))
	if err != nil {
		return nil, err
	}
	c.deferClose(c.semaphores.Close)
	c.check(ctx, logger)
	return c, nil
}

// check warns of what the server or the rights of this user lack. The service starts all the same: what is
// missing may be granted while it runs.
func (c *clients) check(ctx context.Context, logger *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, locks := c.locks.Check(ctx)
	_, limits := c.limits.Check(ctx)
	_, semaphores := c.semaphores.Check(ctx)
	for _, err := range []error{locks, limits, semaphores} {
		if err != nil {
			logger.Warn("check", "error", err)
		}
	}
}

func (c *clients) deferClose(f func(context.Context) error) { c.closers = append(c.closers, f) }

// close closes the clients, which releases what they hold, and then what they were made of.
func (c *clients) close(ctx context.Context) (err error) {
	if c == nil {
		return nil
	}
	for _, f := range slices.Backward(c.closers) {
		err = errors.Join(err, f(ctx))
	}
	c.closers = nil
	return err
}

// embedServer starts a server in this process and returns its address. The server has no clock of its own: a
// timer on the wheel advances its time, and with it every TTL.
func (c *clients) embedServer() (addr string, err error) {
	server := miniredis.NewMiniRedis()
	server.SetTime(time.Now())
	server.ClockTTL(true)
	if err := server.Start(); err != nil {
		return "", fmt.Errorf("embedded server: %w", err)
	}
	clock, err := c.wheel.Every(5*time.Millisecond, func() { server.SetTime(time.Now()) })
	if err != nil {
		server.Close()
		return "", err
	}
	c.deferClose(func(context.Context) error {
		clock.Stop()
		server.Close()
		return nil
	})
	return server.Addr(), nil
}
