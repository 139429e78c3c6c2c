package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// A limit for each user: the burst at once, and then one after the other.
func ExampleClient_Limiter() {
	ctx := context.Background()
	limits := newLimits()

	logins := limits.Limiter("login", ratelimit.PerHour(3).WithBurst(2))
	for range 3 {
		r, err := logins.Allow(ctx, "ada")
		if err != nil {
			log.Fatal(err) // Redis is down; see WithPolicy
		}
		if r.Allowed {
			fmt.Println("allowed, left:", r.Remaining)
		} else {
			fmt.Println("try again in", r.RetryAfter.Round(time.Minute))
		}
	}
	// Output:
	// allowed, left: 1
	// allowed, left: 0
	// try again in 20m0s
}

// A limit that stands in Redis, for all processes, services in Java included. Waiters stand in line.
func ExampleClient_StoredLimiter() {
	ctx := context.Background()
	limits := newLimits()

	partner := limits.StoredLimiter("partner-api") // getRateLimiter("partner-api") in Java
	if err := partner.SetRate(ctx, ratelimit.PerHour(100)); err != nil {
		log.Fatal(err)
	}
	if err := partner.WaitN(ctx, 100); err != nil {
		log.Fatal(err)
	}
	fmt.Println("a hundred calls may go out")

	short, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := partner.Wait(short); errors.Is(err, ratelimit.ErrWouldExceedDeadline) {
		fmt.Println("the next one not within a minute")
	}
	// Output:
	// a hundred calls may go out
	// the next one not within a minute
}

// A limit for each user and one for the service: a request is charged to both or to neither.
func ExampleClient_All() {
	ctx := context.Background()
	limits := newLimits()

	perUser := limits.Limiter("user", ratelimit.PerHour(2))
	perService := limits.Limiter("service", ratelimit.PerHour(100))
	for range 3 {
		r, err := limits.All(perUser.Part("eve"), perService.Part("mail").Cost(10)).Allow(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r.Allowed, "user:", r.Parts[0].Remaining, "service:", r.Parts[1].Remaining)
	}
	// Output:
	// true user: 1 service: 90
	// true user: 0 service: 80
	// false user: 0 service: 80
}

// Tenants have limits of their own, which nothing is kept for.
func ExampleLimiter_With() {
	ctx := context.Background()
	limits := newLimits()

	tenants := limits.Limiter("tenant", ratelimit.PerHour(100))
	free, gold := ratelimit.PerHour(10), ratelimit.PerHour(1000)
	r, err := tenants.With(free).AllowN(ctx, "eve", 5)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("half is left:", r.Remaining, "of", r.Limit)
	if r, err = tenants.With(gold).Peek(ctx, "eve"); err != nil {
		log.Fatal(err)
	}
	fmt.Println("half is left:", r.Remaining > 450, "of", r.Limit)
	// Output:
	// half is left: 5 of 10
	// half is left: true of 1000
}
