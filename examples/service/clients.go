package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/cogwheeltest"
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
	health     *health

	closers []func(context.Context) error // called in reverse, like deferred functions
}

// closeTimeout is how long each client may take to close. Leases end what it cannot release by then.
const closeTimeout = time.Second

// connect makes the clients. redisURL is empty for an embedded server.
func connect(ctx context.Context, redisURL string, logger *slog.Logger) (_ *clients, err error) {
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

	if redisURL == "" {
		addr, stop, err := cogwheeltest.Embed()
		if err != nil {
			return nil, err
		}
		c.deferClose(func(context.Context) error { stop(); return nil })
		logger.Info("REDIS_URL is not set: using an embedded server", "redis", addr)
		redisURL = "redis://" + addr
	}
	opts, err := redisOptions(redisURL)
	if err != nil {
		return nil, err
	}
	rdb := redis.NewClient(opts)
	c.deferClose(func(context.Context) error { return rdb.Close() })
	if err = rdb.Ping(ctx).Err(); err != nil {
		return nil, fmt.Errorf("no answer from the Redis at %s: %w", opts.Addr, err)
	}
	c.health = &health{redis: rdb}
	if _, err = c.wheel.Every(pingEvery, c.health.ping); err != nil {
		return nil, err
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

// redisOptions reads a URL, whose parameters may set timeouts and more: see redis.ParseURL. For rediss:// the
// certificate of the server is verified with the authorities of the system, or those in SSL_CERT_FILE.
func redisOptions(redisURL string) (*redis.Options, error) {
	opts, err := redis.ParseURL(redisURL)
	if _, ok := errors.AsType[*url.Error](err); ok { // whose text has the password
		return nil, errors.New("REDIS_URL is not a URL: in a password, / is written as %2F and % as %25")
	}
	if err != nil {
		return nil, fmt.Errorf("REDIS_URL: %w", err)
	}
	// They bound how long a call without a deadline takes while Redis hangs: docs/operations.md, redis.Options.
	opts.DialTimeout = cmp.Or(opts.DialTimeout, time.Second)
	opts.ReadTimeout = cmp.Or(opts.ReadTimeout, time.Second)
	opts.WriteTimeout = cmp.Or(opts.WriteTimeout, time.Second)
	opts.MaxRetries = cmp.Or(opts.MaxRetries, 1)
	opts.DialerRetries = 1
	opts.ContextTimeoutEnabled = true
	return opts, nil
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
		ctx, cancel := context.WithTimeout(ctx, closeTimeout)
		err = errors.Join(err, f(ctx))
		cancel()
	}
	c.closers = nil
	return err
}
