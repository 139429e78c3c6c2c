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
func ExampleClient_Keyed() {
	ctx := context.Background()
	limits := newLimits()

	logins := limits.Keyed("login", ratelimit.PerHour(3).WithBurst(2))
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
func ExampleClient_Limiter() {
	ctx := context.Background()
	limits := newLimits()

	partner := limits.Limiter("partner-api") // getRateLimiter("partner-api") in Java
	if err := partner.SetRate(ctx, ratelimit.PerHour(100), ratelimit.Overall); err != nil {
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
