package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// One Client for the process, and a lock around the work that must not run twice at a time.
func Example() {
	ctx := context.Background()
	rdb := newRedis() // redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	locks, err := redislock.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx) // releases what is still held

	err = locks.Mutex("orders:42").Do(ctx, func(ctx context.Context) error {
		fmt.Println("shipping order 42")
		return ctx.Err() // ctx ends if the lock is lost
	})
	if err != nil {
		log.Fatal(err) // Redis is down, or the lock was lost on the way
	}
	// Output: shipping order 42
}

// Options of the Client are for all of its locks. What is wrong with them is an error of New.
func ExampleNew() {
	ctx := context.Background()
	w, err := wheel.New(wheel.WithTickDuration(10 * time.Millisecond)) // one for all packages
	if err != nil {
		log.Fatal(err)
	}
	defer w.Stop(ctx)
	locks, err := redislock.New(newRedis(),
		redislock.WithWheel(w),
		redislock.WithLogger(slog.New(slog.NewJSONHandler(os.Stderr, nil))),
		redislock.WithPoll(time.Second),      // waiters also ask when no message came
		redislock.WithShardedChannels(false), // as the services in Java on this cluster
		redislock.WithLockDefaults(redislock.WithLease(10*time.Second)),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)

	_, err = redislock.New(newRedis(), redislock.WithPoll(0))
	fmt.Println(errors.Is(err, cogwheel.ErrInvalid))
	// Output: true
}

// A name that a user has chosen may be refused. Err says so before the first call.
func ExampleInvalidError() {
	locks := newLocks()
	for _, name := range []string{"cart:7", "", "cart:{"} {
		err := locks.Mutex(name).Err()
		if invalid, ok := errors.AsType[*cogwheel.InvalidError](err); ok {
			fmt.Printf("%q: %s is refused\n", name, invalid.Field)
			continue
		}
		fmt.Printf("%q: %v\n", name, err)
	}
	// Output:
	// "cart:7": <nil>
	// "": name is refused
	// "cart:{": name is refused
}

// Options for all locks of a process, and one that differs.
func ExampleWithLockDefaults() {
	ctx := context.Background()
	locks, err := redislock.New(newRedis(), redislock.WithLockDefaults(
		redislock.WithLease(10*time.Second), redislock.WithMetadata("billing-3"),
	))
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)

	for _, m := range []*redislock.Mutex{
		locks.Mutex("invoices"),
		locks.Mutex("archive", redislock.WithLease(time.Hour)),
	} {
		lock, err := m.Lock(ctx)
		if err != nil {
			log.Fatal(err)
		}
		state, err := m.State(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(lock.Name(), state.Holders[0].Metadata, state.TTL.Round(10*time.Second))
	}
	// Output:
	// invoices billing-3 10s
	// archive billing-3 1h0m0s
}

// A process that shuts down releases its locks, so that others need not wait for their leases.
func ExampleClient_Close() {
	ctx := context.Background()
	rdb := newRedis()
	locks, err := redislock.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	lock, err := locks.Mutex("scheduler").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}

	within, cancel := context.WithTimeout(ctx, 5*time.Second) // of the time that the platform gives
	defer cancel()
	if err := locks.Close(within); err != nil {
		log.Print("some locks end with their leases: ", err)
	}
	<-lock.Done()
	fmt.Println(lock.Err())
	_, err = locks.Mutex("scheduler").Lock(ctx)
	fmt.Println(errors.Is(err, redislock.ErrClosed))
	fmt.Println("keys left:", rdb.DBSize(ctx).Val())
	// Output:
	// redislock: client closed
	// true
	// keys left: 0
}

// Waiters of a FairMutex get the lock in the order of their arrival, in whatever process they are.
func ExampleClient_FairMutex() {
	ctx := context.Background()
	queued := make(chan struct{})
	locks, err := redislock.New(newRedis(), redislock.WithHooks(redislock.Hooks{
		Contended: func(redislock.Event) { queued <- struct{}{} },
	}))
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)

	printer := locks.FairMutex("printer")
	current, err := printer.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	var printed sync.WaitGroup
	for _, document := range []string{"letter", "poster", "ticket"} {
		printed.Add(1)
		printer.LockFunc(ctx, func(l *redislock.Lock, err error) {
			defer printed.Done()
			fmt.Println(document, err)
			defer l.Unlock(ctx)
		})
		<-queued // its place in the queue is taken
	}
	if err := current.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	printed.Wait()
	// Output:
	// letter <nil>
	// poster <nil>
	// ticket <nil>
}

// While Redis is down, a lock is neither free nor held: calls return the error of Redis, never ErrLocked.
func ExampleClient_redisDown() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1}) // nothing listens there
	defer rdb.Close()
	locks, err := redislock.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)

	switch _, err := locks.Mutex("report").TryLock(ctx); {
	case err == nil:
		fmt.Println("writing the report")
	case errors.Is(err, redislock.ErrLocked):
		fmt.Println("another process writes the report")
	default:
		fmt.Println("unknown whether another process writes it")
	}
	// Output: unknown whether another process writes it
}
