package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// newRedis returns a client of an empty Redis for an Example. In a program it is redis.NewClient,
// redis.NewFailoverClient or redis.NewClusterClient.
var newRedis = redistest.Open

// newLimits returns the Client that a process makes once: ratelimit.New(rdb). It is closed after all examples.
func newLimits() *ratelimit.Client {
	limits, err := ratelimit.New(newRedis())
	if err != nil {
		log.Fatal(err)
	}
	redistest.AtEnd(limits.Close)
	return limits
}

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

// Each Limiter has a prefix for its keys, a limit, and options such as the algorithm.
func ExampleLimiter() {
	limits := newLimits()
	perUser := limits.Limiter("api", ratelimit.PerSecond(10).WithBurst(20)) // GCRA
	quota := limits.Limiter("quota", ratelimit.PerHour(100), ratelimit.WithAlgorithm(ratelimit.FixedWindow))
	smooth := limits.Limiter("smooth", ratelimit.PerHour(100), ratelimit.WithAlgorithm(ratelimit.SlidingWindow))
	letters := limits.Limiter("letters", ratelimit.Limit{Rate: 3, Per: 2 * time.Second, Burst: 1}) // any other limit
	for _, limiter := range []*ratelimit.Limiter{perUser, quota, smooth, letters} {
		fmt.Println(limiter.RedisKey("ada"), limiter.Limit())
	}
	// Output:
	// api:{ada} 10 per 1s, burst 20
	// quota:{ada}:window 100 per 1h0m0s, burst 100
	// smooth:{ada}:sliding 100 per 1h0m0s, burst 100
	// letters:{ada} 3 per 2s, burst 1
}

// AllowUpTo takes what there is, for work that can be cut: here, a batch of messages.
func ExampleLimiter_AllowUpTo() {
	ctx := context.Background()
	messages := newLimits().Limiter("messages", ratelimit.PerHour(30))
	for range 2 {
		r, err := messages.AllowUpTo(ctx, "newsletter", 20)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("sending", r.Granted)
	}
	// Output:
	// sending 20
	// sending 10
}

// Wait blocks until it is the caller's turn. It fails at once if the turn would come after the deadline.
func ExampleLimiter_Wait() {
	ctx := context.Background()
	calls := newLimits().Limiter("partner", ratelimit.Limit{Rate: 20, Per: time.Second, Burst: 1})
	for i := range 3 {
		if err := calls.Wait(ctx, "acme"); err != nil {
			log.Fatal(err)
		}
		fmt.Println("call", i)
	}

	short, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	slow := newLimits().Limiter("letters", ratelimit.PerHour(1))
	fmt.Println(slow.Wait(short, "acme"))
	fmt.Println(errors.Is(slow.Wait(short, "acme"), ratelimit.ErrWouldExceedDeadline))
	// Output:
	// call 0
	// call 1
	// call 2
	// <nil>
	// true
}

// Reserve takes permits now for a later time, and Cancel gives them back.
func ExampleLimiter_Reserve() {
	ctx := context.Background()
	mails := newLimits().Limiter("mails", ratelimit.PerMinute(2).WithBurst(1))
	for range 3 {
		r, err := mails.Reserve(ctx, "ada", 1)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("to be sent in", r.Delay().Round(15*time.Second))
		if r.Delay() > 0 {
			cancelled, err := r.Cancel(ctx) // the mail is not needed after all
			fmt.Println("cancelled:", cancelled, err)
		}
	}
	// Output:
	// to be sent in 0s
	// to be sent in 30s
	// cancelled: true <nil>
	// to be sent in 30s
	// cancelled: true <nil>
}

// The cost of a call to a language model is known when it has ended.
func ExampleLimiter_TryReserve() {
	ctx := context.Background()
	limits := newLimits()
	complete := func(string) (used int64) { return 300 }
	tokens := limits.Limiter("tokens", ratelimit.PerMinute(10_000))
	answer := func(prompt string, estimate int64) error {
		r, err := tokens.TryReserve(ctx, "ada", estimate)
		if err != nil {
			return err // ErrExceedsLimit, for example: the estimate is above the burst
		}
		if !r.Allowed {
			return fmt.Errorf("try again in %v", r.RetryAfter)
		}
		used := complete(prompt)
		if err := r.Reservation.Settle(ctx, used); err != nil {
			log.Print(err) // the answer counts as the estimate
		}
		return nil
	}
	fmt.Println(answer("a poem", 2000))
	fmt.Println(errors.Is(answer("a novel", 20_000), ratelimit.ErrExceedsLimit))
	state, err := tokens.Peek(ctx, "ada")
	fmt.Println(state.Remaining >= 9700, err)
	// Output:
	// <nil>
	// true
	// true <nil>
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

// WithShadow introduces a limit: requests pass, and WouldDeny, hooks and Stats tell which it would deny.
func ExampleWithShadow() {
	ctx := context.Background()
	limits := newLimits()
	perUser := limits.Limiter("api", ratelimit.PerHour(2), ratelimit.WithShadow())
	for range 3 {
		r, err := perUser.Allow(ctx, "ada")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r.Allowed, r.WouldDeny)
	}
	fmt.Println("would be denied:", limits.Stats().ShadowDenied)
	// Output:
	// true false
	// true false
	// true true
	// would be denied: 1
}

// A limit on trial beside an enforced one is asked in a call of its own, for which the request does not wait.
func ExampleWithShadow_besideAnotherLimit() {
	ctx := context.Background() // of the request
	limits := newLimits()
	perUser := limits.Limiter("user", ratelimit.PerHour(100))
	trial := limits.Limiter("trial", ratelimit.PerHour(1), ratelimit.WithShadow())
	decided := make(chan error)
	done := func(err error) { decided <- err } // in a service: func(error) {}
	for range 3 {
		r, err := perUser.Allow(ctx, "ada")
		if err != nil {
			log.Fatal(err)
		}
		if r.Allowed {
			trial.WaitFunc(context.WithoutCancel(ctx), "mail", 1, done)
		}
		fmt.Println(r.Allowed, "left:", r.Remaining)
	}
	for range 3 {
		if err := <-decided; err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("would be denied:", limits.Stats().ShadowDenied)
	// Output:
	// true left: 99
	// true left: 98
	// true left: 97
	// would be denied: 2
}

// An API key does not stand in Redis: its hash does.
func ExampleHashKeys() {
	ctx := context.Background()
	rdb := newRedis()
	limits, err := ratelimit.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close(ctx)

	secret, apiKey := []byte("at least 16 random bytes"), "sk-live-4711"
	perKey := limits.Limiter("api", ratelimit.PerHour(100))

	hash := ratelimit.HashKeys(secret)
	result, err := perKey.Allow(ctx, hash(apiKey))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Allowed, perKey.RedisKey(hash(apiKey)))
	// Output: true api:{8kz69E1tYYDzS4IrlQGFKA}
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
