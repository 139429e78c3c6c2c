package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// One Client for the process, and a limit for each user.
func Example() {
	ctx := context.Background()
	rdb := newRedis() // redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	limits, err := ratelimit.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close(ctx)

	perUser := limits.Limiter("api", ratelimit.PerMinute(60).WithBurst(2))
	for range 3 {
		switch r, err := perUser.Allow(ctx, "ada"); {
		case err != nil:
			log.Fatal(err) // Redis is down; see WithPolicy
		case r.Allowed:
			fmt.Println("serving ada")
		default:
			fmt.Println("too many requests; soon:", r.RetryAfter <= time.Second)
		}
	}
	// Output:
	// serving ada
	// serving ada
	// too many requests; soon: true
}

// Options of the Client are for all of its limiters. What is wrong with them is an error of New.
func ExampleNew() {
	ctx := context.Background()
	w, err := wheel.New(wheel.WithTickDuration(5 * time.Millisecond)) // one for all packages
	if err != nil {
		log.Fatal(err)
	}
	defer w.Stop(ctx)
	limits, err := ratelimit.New(newRedis(),
		ratelimit.WithWheel(w),
		ratelimit.WithLogger(slog.New(slog.NewJSONHandler(os.Stderr, nil))),
		ratelimit.WithTimeout(100*time.Millisecond), // then the policy decides
		ratelimit.WithPolicy(ratelimit.FailOpen()),
		ratelimit.WithBreaker(5, time.Second), // from the sixth failure on without the timeout
	)
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close(ctx)

	_, err = ratelimit.New(newRedis(), ratelimit.WithTimeout(0))
	fmt.Println(errors.Is(err, cogwheel.ErrInvalid))
	// Output: true
}

// A limit that comes from a configuration may be refused. Err says so before the first call.
func ExampleInvalidError() {
	perUser := newLimits().Limiter("api", ratelimit.Limit{Rate: 10}) // the period is missing
	if invalid, ok := errors.AsType[*cogwheel.InvalidError](perUser.Err()); ok {
		fmt.Println(invalid.Field, invalid.Value)
	}
	// Output: Limit.Per 0s
}

// Stats are for metrics.
func ExampleClient_Stats() {
	ctx := context.Background()
	limits := newLimits()
	downloads := limits.Limiter("downloads", ratelimit.PerHour(1))
	for range 3 {
		if _, err := downloads.Allow(ctx, "ada"); err != nil {
			log.Fatal(err)
		}
	}
	stats := limits.Stats()
	fmt.Println("allowed:", stats.Allowed, "denied:", stats.Denied, "Redis is down:", stats.Down)
	// Output: allowed: 1 denied: 2 Redis is down: false
}

// Close ends the waits of a process that shuts down.
func ExampleClient_Close() {
	ctx := context.Background()
	limits, err := ratelimit.New(newRedis())
	if err != nil {
		log.Fatal(err)
	}
	mails := limits.Limiter("mails", ratelimit.PerHour(1))
	if _, err := mails.Allow(ctx, "ada"); err != nil {
		log.Fatal(err)
	}
	ended := make(chan error, 1)
	mails.WaitFunc(ctx, "ada", 1, func(err error) { ended <- err }) // would wait for an hour

	within, cancel := context.WithTimeout(ctx, 5*time.Second) // of the time that the platform gives
	defer cancel()
	if err := limits.Close(within); err != nil {
		log.Fatal(err)
	}
	fmt.Println(errors.Is(<-ended, ratelimit.ErrClosed))
	// Output: true
}

// A Limit is a comparable value.
func ExampleLimit() {
	fmt.Println(ratelimit.PerSecond(100))
	fmt.Println(ratelimit.PerMinute(600).WithBurst(20)) // no more than 20 at once
	fmt.Println(ratelimit.Limit{Rate: 1000, Per: 24 * time.Hour, Burst: 100})
	fmt.Println(ratelimit.PerHour(5) == ratelimit.Limit{Rate: 5, Per: time.Hour, Burst: 5})
	// Output:
	// 100 per 1s, burst 100
	// 600 per 1m0s, burst 20
	// 1000 per 24h0m0s, burst 100
	// true
}
