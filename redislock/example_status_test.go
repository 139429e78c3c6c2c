package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// Check tells a service at its start what would fail later. Here the user lacks a right that locks need.
func ExampleClient_Check() {
	ctx := context.Background()
	admin := newRedis()
	err := admin.Do(ctx, "ACL", "SETUSER", "shop", "reset", "on", ">secret", "~*", "&*", "+@all", "-pexpire").Err()
	if err != nil {
		log.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: admin.Options().Addr, Username: "shop", Password: "secret"})
	defer rdb.Close()
	locks, err := redislock.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)

	report, err := locks.Check(ctx, locks.Mutex("orders"), locks.RWMutex("catalogue")) // what the service uses
	if report == nil {
		log.Fatal(err)
	}
	fmt.Println("ready:", err == nil)
	for _, finding := range report.Findings {
		if finding.Level == "failure" {
			fmt.Println(finding.Subject, finding.Missing)
		}
	}
	// Output:
	// ready: false
	// commands [+pexpire]
}

// Holds are for a status page: what this process holds, and since when.
func ExampleClient_Holds() {
	ctx := context.Background()
	locks := newLocks()
	lock, err := locks.Mutex("orders:42", redislock.WithMetadata("host-3")).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)

	for hold := range locks.Holds() {
		fmt.Println(hold.Kind, hold.Name, hold.Metadata, "for long:", time.Since(hold.Since) > time.Hour)
	}
	// Output: mutex orders:42 host-3 for long: false
}

// Waits are the locks that calls of this process wait for.
func ExampleClient_Waits() {
	ctx := context.Background()
	locks := newLocks()
	seat := locks.Mutex("seat:7A")
	lock, err := seat.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error)
	for range 2 {
		seat.LockFunc(ctx, func(l *redislock.Lock, err error) {
			defer l.Unlock(ctx)
			ended <- err
		})
	}
	for wait := range locks.Waits() {
		fmt.Println(wait.Kind, wait.Name, wait.Calls)
	}
	fmt.Println(lock.Unlock(ctx), <-ended, <-ended)
	// Output:
	// mutex seat:7A 2
	// <nil> <nil> <nil>
}

// Stats are for metrics. They need no hooks.
func ExampleClient_Stats() {
	ctx := context.Background()
	locks := newLocks()
	job := locks.Mutex("job")
	lock, err := job.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := job.TryLock(ctx); !errors.Is(err, redislock.ErrLocked) {
		log.Fatal(err)
	}
	stats := locks.Stats()
	fmt.Println("acquired:", stats.Acquired, "failed:", stats.Failed, "held:", stats.Held)
	if err := lock.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	stats = locks.Stats()
	fmt.Println("released:", stats.Released, "lost:", stats.Lost, "held:", stats.Held)
	// Output:
	// acquired: 1 failed: 1 held: 1
	// released: 1 lost: 0 held: 0
}

// The state of a FairMutex has its waiters in the order in which they will get the lock, those of other
// processes too.
func ExampleMutex_State_waiting() {
	ctx := context.Background()
	queued := make(chan struct{})
	locks, err := redislock.New(newRedis(), redislock.WithHooks(redislock.Hooks{
		Contended: func(redislock.Event) { queued <- struct{}{} },
	}))
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx) // ends the waits

	current, err := locks.FairMutex("printer").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer current.Unlock(ctx)
	for _, document := range []string{"letter", "poster"} {
		waiting := locks.FairMutex("printer", redislock.WithMetadata(document))
		defer waiting.LockFunc(ctx, func(*redislock.Lock, error) {})()
		<-queued // its place in the queue is taken
	}
	state, err := locks.FairMutex("printer").State(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, waiter := range state.Waiting {
		fmt.Println(waiter.Metadata)
	}
	// Output:
	// letter
	// poster
}
