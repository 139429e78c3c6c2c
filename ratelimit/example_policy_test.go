package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// While Redis is down, calls fail unless a policy says otherwise. A failure is no denial: what to do is the
// caller's decision.
func ExampleFailClosed() {
	ctx := context.Background()
	down := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nothing listens there
	defer down.Close()
	limits, err := ratelimit.New(down, ratelimit.WithPolicy(ratelimit.FailClosed())) // the default
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close(ctx)

	_, err = limits.Limiter("transfers", ratelimit.PerMinute(10)).Allow(ctx, "ada")
	fmt.Println("cannot tell:", errors.Is(err, ratelimit.ErrUnavailable))
	// Output: cannot tell: true
}

// FailOpen serves everything while Redis is down. The source of the decision says so.
func ExampleFailOpen() {
	ctx := context.Background()
	down := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nothing listens there
	defer down.Close()
	limits, err := ratelimit.New(down, ratelimit.WithPolicy(ratelimit.FailOpen()))
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close(ctx)

	search := limits.Limiter("search", ratelimit.PerHour(1))
	for range 3 {
		r, err := search.Allow(ctx, "ada")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r.Allowed, r.Source == ratelimit.SourceDegraded)
	}
	// Output:
	// true true
	// true true
	// true true
}

// LocalShare grants a part of the limit in each process while Redis is down: here, a tenth of it.
func ExampleLocalShare() {
	ctx := context.Background()
	down := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nothing listens there
	defer down.Close()
	limits, err := ratelimit.New(down, ratelimit.WithPolicy(ratelimit.LocalShare(10)))
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close(ctx)

	search := limits.Limiter("search", ratelimit.PerHour(20))
	for range 3 {
		r, err := search.Allow(ctx, "ada")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r.Allowed, "left:", r.Remaining, "of", r.Limit, r.Source)
	}
	// Output:
	// true left: 1 of 2 degraded
	// true left: 0 of 2 degraded
	// false left: 0 of 2 degraded
}

// After some failures in a row Redis is not asked any more: a decision then takes no time. A probe in the
// background finds out when Redis is back.
func ExampleWithBreaker() {
	ctx := context.Background()
	down := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nothing listens there
	defer down.Close()
	limits, err := ratelimit.New(down, ratelimit.WithPolicy(ratelimit.FailOpen()), ratelimit.WithBreaker(2, time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close(ctx)

	search := limits.Limiter("search", ratelimit.PerHour(1))
	for range 1000 {
		if _, err := search.Allow(ctx, "ada"); err != nil {
			log.Fatal(err)
		}
	}
	stats := limits.Stats()
	fmt.Println("down:", stats.Down, "decided by the policy:", stats.Degraded)
	// Output: down: true decided by the policy: 1000
}

// A wrong password is no outage: no policy decides, so that FailOpen does not hide it.
func ExamplePolicy() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: newRedis().Options().Addr, Username: "api", Password: "mistyped"})
	defer rdb.Close()
	limits, err := ratelimit.New(rdb, ratelimit.WithPolicy(ratelimit.FailOpen()))
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close(ctx)

	_, err = limits.Limiter("search", ratelimit.PerHour(1)).Allow(ctx, "ada")
	fmt.Println(errors.Is(err, ratelimit.ErrMisconfigured))
	// Output: true
}
