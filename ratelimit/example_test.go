package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// exampleTB lets examples use the server that the tests share.
type exampleTB struct{ testing.TB }

func (exampleTB) Helper()           {}
func (exampleTB) Fatal(args ...any) { log.Fatal(args...) }

// exampleClient stands for the Client that a process makes once, usually without options.
func exampleClient() (limits *ratelimit.Client, done func()) {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Shared(exampleTB{}).Addr()})
	w, err := wheel.New()
	if err != nil {
		log.Fatal(err)
	}
	limits, err = ratelimit.New(rdb, ratelimit.WithWheel(w))
	if err != nil {
		log.Fatal(err)
	}
	return limits, func() {
		ctx := context.Background()
		if err := limits.Close(ctx); err != nil {
			log.Fatal(err)
		}
		if _, err := w.Stop(ctx); err != nil {
			log.Fatal(err)
		}
		_ = rdb.Close()
	}
}

// A limit for each user: the burst at once, and then one after the other.
func ExampleClient_Keyed() {
	limits, done := exampleClient()
	defer done()
	ctx := context.Background()

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
	limits, done := exampleClient()
	defer done()
	ctx := context.Background()

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
