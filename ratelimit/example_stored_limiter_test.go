package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// Processes set a limit when they start, if there is none. Operators change it for all of them.
func ExampleStoredLimiter() {
	ctx := context.Background()
	limits := newLimits()
	search := limits.StoredLimiter("search")
	set, err := search.TrySetRate(ctx, ratelimit.PerMinute(100)) // at the start of each process
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the limit was set now:", set) // false if there is one already: it stays
	r, err := search.Allow(ctx)                // ErrNotSet if there is no limit
	fmt.Println(r.Allowed, err)
	// Output:
	// the limit was set now: true
	// true <nil>
}

// A limit that a service in Java has set with trySetRate(OVERALL, 100, 1, HOURS) holds here too, and the count
// is shared.
func ExampleClient_StoredLimiter_redisson() {
	ctx := context.Background()
	rdb := newRedis()
	rdb.HSet(ctx, "partner-api", "rate", 100, "interval", time.Hour.Milliseconds(), "type", 0) // as Redisson writes it
	limits, err := ratelimit.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close(ctx)

	r, err := limits.StoredLimiter("partner-api").AllowN(ctx, 30)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Allowed, r.Remaining, "of", r.Limit)
	fmt.Println("entries that Redisson sees:", rdb.ZCard(ctx, "{partner-api}:permits").Val())
	// Output:
	// true 70 of 100
	// entries that Redisson sees: 1
}

// A limiter whose limit is set by an operator is an error until then. What to do without one is the caller's
// decision.
func ExampleStoredLimiter_Allow_notSet() {
	ctx := context.Background()
	search := newLimits().StoredLimiter("search")
	_, err := search.Allow(ctx)
	fmt.Println("no limit is set:", errors.Is(err, ratelimit.ErrNotSet))

	set, err := search.TrySetRate(ctx, ratelimit.PerMinute(100)) // a default
	fmt.Println(set, err)
	r, err := search.Allow(ctx)
	fmt.Println(r.Allowed, err)
	// Output:
	// no limit is set: true
	// true <nil>
	// true <nil>
}

// Each process may set the limit at its start; the first one does.
func ExampleStoredLimiter_TrySetRate() {
	ctx := context.Background()
	orders := newLimits().StoredLimiter("orders")
	for _, limit := range []ratelimit.Limit{ratelimit.PerMinute(100), ratelimit.PerMinute(200)} {
		set, err := orders.TrySetRate(ctx, limit)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(set)
	}
	config, err := orders.Config(ctx)
	fmt.Println(config.Limit, err)
	// Output:
	// true
	// false
	// 100 per 1m0s, burst 100 <nil>
}

// A limit can be changed for all processes while they run. WithState keeps what was granted.
func ExampleStoredLimiter_SetRate() {
	ctx := context.Background()
	orders := newLimits().StoredLimiter("orders")
	if err := orders.SetRate(ctx, ratelimit.PerHour(100)); err != nil {
		log.Fatal(err)
	}
	if _, err := orders.AllowN(ctx, 60); err != nil {
		log.Fatal(err)
	}
	if err := orders.SetRate(ctx, ratelimit.PerHour(80), ratelimit.WithState()); err != nil {
		log.Fatal(err)
	}
	r, err := orders.Peek(ctx)
	fmt.Println(r.Remaining, "of", r.Limit, err)
	// Output: 20 of 80 <nil>
}

// UpdateRate changes a limit that exists, and does not bring back one that was deleted.
func ExampleStoredLimiter_UpdateRate() {
	ctx := context.Background()
	beta := newLimits().StoredLimiter("beta")
	if err := beta.SetRate(ctx, ratelimit.PerHour(100)); err != nil {
		log.Fatal(err)
	}
	deleted, err := beta.Delete(ctx)
	fmt.Println("deleted:", deleted, err)
	updated, err := beta.UpdateRate(ctx, ratelimit.PerHour(200))
	fmt.Println("updated:", updated, err)
	// Output:
	// deleted: true <nil>
	// updated: false <nil>
}

// Names that come and go, such as those of sessions, vanish when they were not used for a while.
func ExampleWithKeepAlive() {
	ctx := context.Background()
	session := newLimits().StoredLimiter("session:7")
	err := session.SetRate(ctx, ratelimit.PerMinute(10), ratelimit.WithKeepAlive(time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	config, err := session.Config(ctx)
	fmt.Println(config.KeepAlive, err)
	// Output: 1h0m0s <nil>
}

// Return gives back what was not used, because the call that it was for was not made.
func ExampleStoredLimiter_Return() {
	ctx := context.Background()
	geocoder := newLimits().StoredLimiter("geocoder")
	if err := geocoder.SetRate(ctx, ratelimit.PerHour(10)); err != nil {
		log.Fatal(err)
	}
	granted, err := geocoder.AllowN(ctx, 4)
	if err != nil {
		log.Fatal(err)
	}
	given, err := geocoder.Return(ctx, granted) // the address was in the cache
	fmt.Println(given, err)
	r, err := geocoder.Peek(ctx)
	fmt.Println(r.Remaining, err)
	// Output:
	// true <nil>
	// 10 <nil>
}

// With the scope PerClient each process has the whole limit. It can be changed for all of them at once.
func ExampleScope() {
	ctx := context.Background()
	scans := newLimits().StoredLimiter("scans")
	if err := scans.SetRate(ctx, ratelimit.PerHour(2), ratelimit.WithScope(ratelimit.PerClient)); err != nil {
		log.Fatal(err)
	}
	for range 3 {
		r, err := scans.Allow(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r.Allowed, "left for this process:", r.Remaining)
	}
	// Output:
	// true left for this process: 1
	// true left for this process: 0
	// false left for this process: 0
}
