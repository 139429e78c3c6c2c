package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// newRedis returns a client of an empty Redis for an Example. In a program it is redis.NewClient,
// redis.NewFailoverClient or redis.NewClusterClient.
var newRedis = redistest.Open

// newLocks returns the Client that a process makes once: redislock.New(rdb). It is closed after all examples.
func newLocks() *redislock.Client {
	locks, err := redislock.New(newRedis())
	if err != nil {
		log.Fatal(err)
	}
	redistest.AtEnd(locks.Close)
	return locks
}

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

// Lock waits, and TryLock does not: it tells how long the lock may be held. Unlock tells whether the lock was still
// held, which is whether the work was protected to its end.
func ExampleMutex_Lock() {
	ctx := context.Background()
	report := newLocks().Mutex("report", redislock.WithLease(10*time.Second))
	lock, err := report.Lock(ctx) // the context bounds the wait, not the hold
	if err != nil {
		log.Fatal(err)
	}

	_, err = report.TryLock(ctx)
	if locked, ok := errors.AsType[*redislock.LockedError](err); ok { // any other error: Redis is down, say
		fmt.Println("another writes the report, for up to", locked.TTL.Round(10*time.Second))
	}

	switch err := lock.Unlock(ctx); {
	case err == nil:
		fmt.Println("done, and free for others")
	case errors.Is(err, redislock.ErrLost):
		log.Print("another may have worked at the same time")
	case errors.Is(err, redislock.ErrUnconfirmed):
		log.Print("done; the release is retried in the background")
	}
	// Output:
	// another writes the report, for up to 10s
	// done, and free for others
}

// LockFunc waits without a goroutine, so thousands of callers may wait.
func ExampleMutex_LockFunc() {
	ctx := context.Background()
	locks := newLocks()
	served := make(chan struct{})
	locks.Mutex("later").LockFunc(ctx, func(l *redislock.Lock, err error) {
		defer close(served)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("held:", l.Valid(), "unlock:", l.Unlock(ctx))
	})
	<-served
	// Output:
	// held: true unlock: <nil>
}

// A name that a user has chosen may be refused. Err says so before the first call.
func ExampleMutex_Err() {
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

// A lock can be lost: here an operator frees it. Done closes and the contexts of the lock end.
func ExampleLock_Done() {
	ctx := context.Background()
	fragile := newLocks().Mutex("fragile", redislock.WithLease(5*time.Second))
	lock, err := fragile.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := fragile.ForceUnlock(ctx); err != nil {
		log.Fatal(err)
	}

	<-lock.Done()
	fmt.Println("lost:", errors.Is(lock.Err(), redislock.ErrLost))
	fmt.Println("valid:", lock.Valid())
	fmt.Println("Unlock returns the same:", errors.Is(lock.Unlock(ctx), redislock.ErrLost))
	// Output:
	// lost: true
	// valid: false
	// Unlock returns the same: true
}

// Any number of readers hold the lock together, or one writer alone.
func ExampleClient_RWMutex() {
	ctx := context.Background()
	prices := newLocks().RWMutex("prices")
	one, err := prices.RLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	other, err := prices.RLock(ctx) // does not wait
	if err != nil {
		log.Fatal(err)
	}
	_, err = prices.TryLock(ctx)
	fmt.Println("a writer has to wait:", errors.Is(err, redislock.ErrLocked))

	fmt.Println(one.Unlock(ctx), other.Unlock(ctx))
	writer, err := prices.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("writes:", writer.Valid(), writer.Unlock(ctx))
	// Output:
	// a writer has to wait: true
	// <nil> <nil>
	// writes: true <nil>
}

// One process leads at a time. Here the first term ends by an error, and the second with ctx.
func ExampleMutex_Lead() {
	ctx, stop := context.WithCancel(context.Background())
	leader, terms := newLocks().Mutex("orders:leader", redislock.WithLease(10*time.Second)), 0
	work := func(ctx context.Context) error {
		if terms++; terms == 1 {
			return errors.New("the database is down") // logged; another process may lead now
		}
		fmt.Println("leads:", leader.FromContext(ctx).Valid())
		stop() // the service shuts down
		<-ctx.Done()
		return ctx.Err()
	}
	err := leader.Lead(ctx, work)
	fmt.Println("terms:", terms, errors.Is(err, context.Canceled))
	// Output:
	// leads: true
	// terms: 2 true
}

// WithStringKey locks a name that services with other libraries lock too, such as one with node-redlock.
func ExampleWithStringKey() {
	ctx := context.Background()
	rdb := newRedis() // redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	locks, err := redislock.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)
	stock := locks.Mutex("stock:42", redislock.WithStringKey())
	// What the other libraries do:
	fmt.Println("taken by another:", rdb.SetNX(ctx, "stock:42", "a random value", time.Minute).Val())
	_, err = stock.TryLock(ctx)
	fmt.Println("locked:", errors.Is(err, redislock.ErrLocked))
	rdb.Del(ctx, "stock:42")
	err = stock.Do(ctx, func(ctx context.Context) error {
		fmt.Println("taken by another:", rdb.SetNX(ctx, "stock:42", "a random value", time.Minute).Val())
		return nil
	})
	fmt.Println(err)
	// Output:
	// taken by another: true
	// locked: true
	// taken by another: false
	// <nil>
}

// WithMinHold lets a job that is shorter than the clocks of two processes differ run in one of them.
func ExampleWithMinHold() {
	ctx := context.Background()
	report := newLocks().Mutex("report", redislock.WithMinHold(time.Minute))
	for _, process := range []string{"first", "second"} {
		l, err := report.TryLock(ctx)
		if errors.Is(err, redislock.ErrLocked) {
			fmt.Println(process, "skips it")
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(process, "runs it")
		if err := l.Unlock(ctx); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// first runs it
	// second skips it
}
