package semaphore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/semaphore"
)

// Hooks are where metrics and traces are made.
func ExampleHooks() {
	ctx := context.Background()
	events := make(chan string, 10)
	report := func(what string) func(semaphore.Event) {
		return func(e semaphore.Event) { events <- fmt.Sprintf("%s %d of %s", what, e.Permits, e.Name) }
	}
	semaphores, err := semaphore.New(newRedis(), semaphore.WithHooks(semaphore.Hooks{
		Acquired: report("acquired"), Contended: report("contended"), Released: report("released"), Lost: report("lost"),
	}))
	if err != nil {
		log.Fatal(err)
	}
	uploads := semaphores.Semaphore("uploads")
	if err := uploads.SetPermits(ctx, 3); err != nil {
		log.Fatal(err)
	}
	grant, err := uploads.Acquire(ctx, 2)
	if err != nil {
		log.Fatal(err)
	}
	_, err = uploads.TryAcquire(ctx, 3)
	fmt.Println(errors.Is(err, semaphore.ErrNoPermits), grant.Release(ctx), semaphores.Close(ctx))

	close(events) // none is called after Close
	for event := range events {
		fmt.Println(event)
	}
	// Output:
	// true <nil> <nil>
	// acquired 2 of uploads
	// contended 3 of uploads
	// released 2 of uploads
}

// Check tells a service at its start what would fail later, and what would only work worse: here, waiters
// could not be woken.
func ExampleClient_Check() {
	ctx := context.Background()
	admin := newRedis()
	err := admin.Do(ctx, "ACL", "SETUSER", "shop", "reset", "on", ">secret", "~*", "+@all", "resetchannels").Err()
	if err != nil {
		log.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: admin.Options().Addr, Username: "shop", Password: "secret"})
	defer rdb.Close()
	semaphores, err := semaphore.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer semaphores.Close(ctx)

	report, err := semaphores.Check(ctx, semaphores.Semaphore("uploads")) // what the service uses
	if report == nil {
		log.Fatal(err)
	}
	fmt.Println("ready:", err == nil)
	for _, finding := range report.Findings {
		if len(finding.Missing) > 0 {
			fmt.Println(finding.Level, finding.Subject, finding.Missing)
		}
	}
	// Output:
	// ready: true
	// warning channels [&redisson_sc:{uploads}]
}

// Holds are for a status page: the grants of this process, and since when it has them.
func ExampleClient_Holds() {
	ctx := context.Background()
	semaphores := newSemaphores()
	gpus := semaphores.FairSemaphore("gpus")
	if err := gpus.SetPermits(ctx, 4); err != nil {
		log.Fatal(err)
	}
	grant, err := gpus.Acquire(ctx, 3)
	if err != nil {
		log.Fatal(err)
	}
	defer grant.Release(ctx)

	for hold := range semaphores.Holds() {
		fmt.Println(hold.Kind, hold.Name, len(hold.IDs), "for long:", time.Since(hold.Since) > time.Hour)
	}
	// Output: fair gpus 3 for long: false
}

// Waits are the semaphores for whose permits calls of this process wait.
func ExampleClient_Waits() {
	ctx := context.Background()
	semaphores := newSemaphores()
	uploads := semaphores.Semaphore("uploads")
	if err := uploads.SetPermits(ctx, 1); err != nil {
		log.Fatal(err)
	}
	grant, err := uploads.Acquire(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error)
	for range 2 {
		uploads.AcquireFunc(ctx, 1, func(g *semaphore.Grant, err error) {
			defer g.Release(ctx)
			ended <- err
		})
	}
	for wait := range semaphores.Waits() {
		fmt.Println(wait.Kind, wait.Name, wait.Calls)
	}
	fmt.Println(grant.Release(ctx), <-ended, <-ended)
	// Output:
	// semaphore uploads 2
	// <nil> <nil> <nil>
}

// Stats are for metrics. They need no hooks.
func ExampleClient_Stats() {
	ctx := context.Background()
	semaphores := newSemaphores()
	uploads := semaphores.Semaphore("uploads")
	if err := uploads.SetPermits(ctx, 5); err != nil {
		log.Fatal(err)
	}
	grant, err := uploads.Acquire(ctx, 3)
	if err != nil {
		log.Fatal(err)
	}
	defer grant.Release(ctx)
	if _, err := uploads.TryAcquire(ctx, 3); !errors.Is(err, semaphore.ErrNoPermits) {
		log.Fatal(err)
	}
	stats := semaphores.Stats()
	fmt.Println("grants:", stats.Grants, "permits:", stats.Held, "failed:", stats.Failed, "lost:", stats.Lost)
	// Output: grants: 1 permits: 3 failed: 1 lost: 0
}

// State shows an operator what Redis knows of a semaphore, and changes nothing.
func ExampleSemaphore_State() {
	ctx := context.Background()
	seats := newSemaphores().Semaphore("seats", semaphore.WithLease(10*time.Minute))
	if err := seats.SetPermits(ctx, 5); err != nil {
		log.Fatal(err)
	}
	grant, err := seats.Acquire(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	defer grant.Release(ctx)

	state, err := seats.State(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("set:", state.IsSet, "free:", state.Free, "held:", state.Held)
	for _, permit := range state.Permits {
		fmt.Println(permit.ID == grant.IDs()[0], "ends unless it is renewed in", permit.Lease.Round(time.Minute))
	}
	// Output:
	// set: true free: 4 held: 1
	// true ends unless it is renewed in 10m0s
}

// Semaphores of names that come and go, such as those of tenants, vanish when they were not used for a while.
func ExampleWithIdleExpiry() {
	ctx := context.Background()
	rdb := newRedis()
	semaphores, err := semaphore.New(rdb, semaphore.WithIdleExpiry(24*time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	defer semaphores.Close(ctx)

	if err := semaphores.Semaphore("tenant:7").SetPermits(ctx, 5); err != nil {
		log.Fatal(err)
	}
	fmt.Println("expires in", rdb.PTTL(ctx, "tenant:7").Val().Round(time.Hour))
	// Output: expires in 24h0m0s
}
