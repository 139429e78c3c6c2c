package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/cogwheel-go/cogwheel/ratelimit"
)

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

// A denial is a Result, not an error. It says when the same request could be granted.
func ExampleLimiter_Allow() {
	ctx := context.Background()
	logins := newLimits().Limiter("login", ratelimit.PerHour(6).WithBurst(1))
	for range 2 {
		r, err := logins.Allow(ctx, "ada")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r.Allowed, r.RetryAfter.Round(time.Minute))
	}
	// Output:
	// true 0s
	// false 10m0s
}

// Requests may have different costs. One above the burst could never be granted, which is an error.
func ExampleLimiter_AllowN() {
	ctx := context.Background()
	rows := newLimits().Limiter("rows", ratelimit.PerHour(1000))
	for _, n := range []int64{700, 700, 1001} {
		r, err := rows.AllowN(ctx, "ada", n)
		fmt.Println(n, r.Allowed, errors.Is(err, ratelimit.ErrExceedsLimit))
	}
	// Output:
	// 700 true false
	// 700 false false
	// 1001 false true
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

// Peek shows what is left and takes nothing.
func ExampleLimiter_Peek() {
	ctx := context.Background()
	exports := newLimits().Limiter("exports", ratelimit.PerHour(5))
	for range 2 {
		r, err := exports.Peek(ctx, "ada")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r.Remaining, "of", r.Limit, "are left")
	}
	// Output:
	// 5 of 5 are left
	// 5 of 5 are left
}

// Reset forgives: here, after a login that succeeded.
func ExampleLimiter_Reset() {
	ctx := context.Background()
	failures := newLimits().Limiter("failures", ratelimit.PerHour(3))
	if _, err := failures.AllowN(ctx, "ada", 3); err != nil {
		log.Fatal(err)
	}
	if err := failures.Reset(ctx, "ada"); err != nil {
		log.Fatal(err)
	}
	r, err := failures.Allow(ctx, "ada")
	fmt.Println(r.Allowed, err)
	// Output: true <nil>
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

// WaitFunc waits without a goroutine, so a million callers may wait. cancel ends the wait.
func ExampleLimiter_WaitFunc() {
	ctx := context.Background()
	push := newLimits().Limiter("push", ratelimit.PerHour(1))
	ended := make(chan error)
	push.WaitFunc(ctx, "ada", 1, func(err error) { ended <- err })
	fmt.Println(<-ended)

	cancel := push.WaitFunc(ctx, "ada", 1, func(err error) { ended <- err })
	cancel() // the message is obsolete
	fmt.Println(errors.Is(<-ended, context.Canceled))
	// Output:
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
	r, err := tokens.TryReserve(ctx, "ada", 2000)
	if err != nil {
		log.Fatal(err)
	}
	if r.Allowed {
		used := complete("a poem")
		if err := r.Reservation.Settle(ctx, used); err != nil {
			log.Print(err)
		}
	}
	state, err := tokens.Peek(ctx, "ada")
	fmt.Println(state.Remaining >= 9700, err)
	// Output: true <nil>
}

// A Reservation tells when, so that the caller can decide whether that is soon enough.
func ExampleReservation() {
	ctx := context.Background()
	renders := newLimits().Limiter("renders", ratelimit.Limit{Rate: 10, Per: time.Second, Burst: 2})
	for range 2 {
		r, err := renders.Reserve(ctx, "preview", 2)
		if err != nil {
			log.Fatal(err) // ErrWouldExceedDeadline: beyond ctx or a minute
		}
		if err := r.Wait(ctx); err != nil {
			_, _ = r.Cancel(context.WithoutCancel(ctx)) // or the permits are unused
			log.Fatal(err)
		}
		fmt.Println("rendering two frames")
	}
	// Output:
	// rendering two frames
	// rendering two frames
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

// A fixed window counts from the first request on. It is what contracts with a quota per day mean as a rule.
func ExampleWithAlgorithm() {
	ctx := context.Background()
	quota := newLimits().Limiter("quota", ratelimit.PerHour(2), ratelimit.WithAlgorithm(ratelimit.FixedWindow))
	for range 3 {
		r, err := quota.Allow(ctx, "acme")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r.Allowed, "left:", r.Remaining, "anew in", r.ResetAfter.Round(time.Minute))
	}
	// Output:
	// true left: 1 anew in 1h0m0s
	// true left: 0 anew in 1h0m0s
	// false left: 0 anew in 1h0m0s
}
