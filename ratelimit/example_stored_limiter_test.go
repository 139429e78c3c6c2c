package ratelimit_test

import (
	"context"
	"fmt"
	"log"

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
