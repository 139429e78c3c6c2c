package ratelimit_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/ratelimit"
)

func ExampleClient_Keyed() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS_ADDR")})
	defer rdb.Close()
	limits, err := ratelimit.New(rdb) // once per process
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close(ctx)

	logins := limits.Keyed("login", ratelimit.PerMinute(5).WithBurst(3))
	r, err := logins.Allow(ctx, "ada")
	if err != nil {
		log.Fatal(err) // Redis is down; see WithPolicy
	}
	if !r.Allowed {
		fmt.Println("try again in", r.RetryAfter.Round(time.Second))
	}
}

func ExampleClient_Limiter() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS_ADDR")})
	defer rdb.Close()
	limits, err := ratelimit.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close(ctx)

	partner := limits.Limiter("partner-api") // getRateLimiter("partner-api") in Java
	if _, err := partner.TrySetRate(ctx, ratelimit.PerSecond(100), ratelimit.Overall); err != nil {
		log.Fatal(err)
	}
	if err := partner.WaitN(ctx, 3); err != nil { // in line behind whoever waits in this process
		log.Fatal(err)
	}
	fmt.Println("three calls may go out")
}
