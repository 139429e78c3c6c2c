package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// exampleTB lets examples use the server that the tests share.
type exampleTB struct{ testing.TB }

func (exampleTB) Helper()           {}
func (exampleTB) Fatal(args ...any) { log.Fatal(args...) }

// exampleClient stands for the Client that a process creates once, usually without options.
func exampleClient() (locks *redislock.Client, rdb *redis.Client, done func()) {
	rdb = redis.NewClient(&redis.Options{Addr: redistest.Shared(exampleTB{}).Addr()})
	w, err := wheel.New()
	if err != nil {
		log.Fatal(err)
	}
	locks, err = redislock.New(rdb, redislock.WithWheel(w))
	if err != nil {
		log.Fatal(err)
	}
	return locks, rdb, func() {
		ctx := context.Background()
		if err := locks.Close(ctx); err != nil {
			log.Fatal(err)
		}
		if _, err := w.Stop(ctx); err != nil {
			log.Fatal(err)
		}
		_ = rdb.Close()
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
	// unlock again: redislock: lock not held
}

// A lock can be lost: here its key is deleted. Done closes and the contexts of the lock end.
func ExampleLock_Done() {
	locks, rdb, done := exampleClient()
	defer done()
	ctx := context.Background()

	lock, err := locks.Mutex("fragile", redislock.WithLease(300*time.Millisecond)).Lock(ctx)
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
