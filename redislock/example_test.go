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

// exampleClient is newLocks with the Redis below it, and closes the Client at the end of the example.
func exampleClient() (locks *redislock.Client, rdb *redis.Client, done func()) {
	rdb = newRedis()
	locks, err := redislock.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	return locks, rdb, func() {
		if err := locks.Close(context.Background()); err != nil {
			log.Fatal(err)
		}
	}
}

// Do renews the lock while the function runs, and cancels the function's context if the lock is lost.
func ExampleMutex_Do() {
	locks, _, done := exampleClient()
	defer done()
	ctx := context.Background()

	err := locks.Mutex("orders:42").Do(ctx, func(ctx context.Context) error {
		fmt.Println("shipping order 42")
		return ctx.Err()
	})
	fmt.Println("error:", err)
	// Output:
	// shipping order 42
	// error: <nil>
}

// TryLock does not wait. It distinguishes a lock that another holds from a failure of Redis.
func ExampleMutex_TryLock() {
	locks, _, done := exampleClient()
	defer done()
	ctx := context.Background()

	report := locks.Mutex("report", redislock.WithLease(10*time.Second))
	lock, err := report.TryLock(ctx)
	if err != nil {
		log.Fatal(err)
	}

	_, err = report.TryLock(ctx)
	if locked, ok := errors.AsType[*redislock.LockedError](err); ok {
		fmt.Println("another process writes the report, for up to", locked.TTL.Round(10*time.Second))
	}

	fmt.Println("unlock:", lock.Unlock(ctx))
	fmt.Println("unlock again:", lock.Unlock(ctx))
	// Output:
	// another process writes the report, for up to 10s
	// unlock: <nil>
	// unlock again: redislock: unlock "report": lock not held
}

// A lock can be lost: here its key is deleted. Done closes and the contexts of the lock end.
func ExampleLock_Done() {
	locks, rdb, done := exampleClient()
	defer done()
	ctx := context.Background()

	lock, err := locks.Mutex("fragile", redislock.WithLease(5*time.Second)).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	rdb.Del(ctx, "fragile")

	<-lock.Done()
	fmt.Println("lost:", errors.Is(lock.Err(), redislock.ErrLost))
	fmt.Println("valid:", lock.Valid())
	fmt.Println("Unlock returns the same:", errors.Is(lock.Unlock(ctx), redislock.ErrLost))
	// Output:
	// lost: true
	// valid: false
	// Unlock returns the same: true
}
