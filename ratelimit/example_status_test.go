package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// Hooks are where metrics and traces are made. The key is no label of a metric: there may be any number.
func ExampleHooks() {
	ctx := context.Background()
	rdb := newRedis()
	report := func(e ratelimit.Event) {
		fmt.Println(e.Kind, e.Name, "allowed:", e.Result.Allowed, "by", e.Result.Source)
	}
	limits, err := ratelimit.New(rdb, ratelimit.WithHooks(ratelimit.Hooks{
		Allowed: report,
		Denied:  report,
		Down:    func(e ratelimit.Event) { fmt.Println("Redis is down:", e.Node, e.Err) },
	}))
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close(ctx)

	logins := limits.Limiter("login", ratelimit.PerHour(1))
	for range 2 {
		if _, err := logins.Allow(ctx, "ada"); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// limiter login allowed: true by redis
	// limiter login allowed: false by local
}

// Check tells a service at its start what would fail later. Here Redis is down, which FailOpen would hide.
func ExampleClient_Check() {
	ctx := context.Background()
	down := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nothing listens there
	defer down.Close()
	limits, err := ratelimit.New(down, ratelimit.WithPolicy(ratelimit.FailOpen()))
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close(ctx)

	within, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	report, err := limits.Check(within, limits.Limiter("api", ratelimit.PerMinute(60))) // what the service uses
	if report == nil {
		log.Fatal(err)
	}
	fmt.Println("ready:", err == nil)
	for _, finding := range report.Findings {
		if finding.Level == "failure" {
			fmt.Println(finding.Subject, finding.Servers)
		}
	}
	// Output:
	// ready: false
	// reachable [127.0.0.1:1]
}

// Breaker tells a status page whether Redis is asked at all, and why not.
func ExampleClient_Breaker() {
	ctx := context.Background()
	down := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nothing listens there
	defer down.Close()
	limits, err := ratelimit.New(down,
		ratelimit.WithPolicy(ratelimit.FailOpen()), ratelimit.WithBreaker(2, time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close(ctx)

	search := limits.Limiter("search", ratelimit.PerHour(1))
	for range 3 {
		breaker := limits.Breaker()
		fmt.Println("down:", breaker.Down, "failures:", breaker.Failures, "error:", breaker.Err != nil)
		if _, err := search.Allow(ctx, "ada"); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// down: false failures: 0 error: false
	// down: false failures: 1 error: true
	// down: true failures: 2 error: true
}

// In a cluster, limits that are decided together must be in one slot. Here the keys of users take the service
// as their tag, as the key of the service itself does.
func ExampleWithHashTag() {
	limits := newLimits() // of a cluster, it would be the same
	perUser := limits.Limiter("user", ratelimit.PerHour(2), ratelimit.WithHashTag("mail"))
	perService := limits.Limiter("service", ratelimit.PerHour(100))

	fmt.Println(perUser.RedisKey("ada"))
	fmt.Println(perUser.RedisKey("bob"))
	fmt.Println(perService.RedisKey("mail"))
	r, err := limits.All(perUser.Part("ada"), perService.Part("mail")).Allow(context.Background())
	fmt.Println(r.Allowed, err)
	// Output:
	// user:{mail}:key:ada
	// user:{mail}:key:bob
	// service:{mail}
	// true <nil>
}

// Parts that cannot be decided together are refused. Err says so before the first call.
func ExampleAll() {
	limits := newLimits()
	perSecond := limits.Limiter("api", ratelimit.PerSecond(10))
	perDay := limits.Limiter("api", ratelimit.Limit{Rate: 1000, Per: 24 * time.Hour, Burst: 1000})

	both := limits.All(perSecond.Part("ada"), perDay.Part("ada")) // would count in one key
	fmt.Println(errors.Is(both.Err(), cogwheel.ErrInvalid))

	perDay = limits.Limiter("api-day", perDay.Limit())
	both = limits.All(perSecond.Part("ada"), perDay.Part("ada"))
	fmt.Println(both.Err())
	// Output:
	// true
	// <nil>
}
