package semaphore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// One Client for the process, and at most five exports at a time in all processes.
func Example() {
	ctx := context.Background()
	rdb := newRedis() // redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	semaphores, err := semaphore.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer semaphores.Close(ctx) // releases what is still held

	exports := semaphores.Semaphore("exports")
	if _, err := exports.TrySetPermits(ctx, 5); err != nil { // the first process sets them
		log.Fatal(err)
	}
	grant, err := exports.Acquire(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	defer grant.Release(ctx)

	exporting := grant.Context(ctx) // ends if the permit is lost
	fmt.Println("exporting", exporting.Err())
	// Output: exporting <nil>
}

// Options of the Client are for all of its semaphores. What is wrong with them is an error of New.
func ExampleNew() {
	ctx := context.Background()
	w, err := wheel.New(wheel.WithTickDuration(10 * time.Millisecond)) // one for all packages
	if err != nil {
		log.Fatal(err)
	}
	defer w.Stop(ctx)
	semaphores, err := semaphore.New(newRedis(),
		semaphore.WithWheel(w),
		semaphore.WithLogger(slog.New(slog.NewJSONHandler(os.Stderr, nil))),
		semaphore.WithPoll(time.Second),      // waiters also ask when no message came
		semaphore.WithShardedChannels(false), // as the services in Java on this cluster
	)
	if err != nil {
		log.Fatal(err)
	}
	defer semaphores.Close(ctx)

	_, err = semaphore.New(newRedis(), semaphore.WithPoll(0))
	fmt.Println(errors.Is(err, cogwheel.ErrInvalid))
	// Output: true
}

// A name that a user has chosen may be refused. Err says so before the first call.
func ExampleInvalidError() {
	err := newSemaphores().Semaphore("pool:{").Err()
	if invalid, ok := errors.AsType[*cogwheel.InvalidError](err); ok {
		fmt.Println(invalid.Package, invalid.Field, "is refused")
	}
	// Output: semaphore name is refused
}

// A process that shuts down releases its grants, so that others need not wait for their leases.
func ExampleClient_Close() {
	ctx := context.Background()
	semaphores, err := semaphore.New(newRedis())
	if err != nil {
		log.Fatal(err)
	}
	workers := semaphores.Semaphore("workers")
	if err := workers.SetPermits(ctx, 3); err != nil {
		log.Fatal(err)
	}
	grant, err := workers.Acquire(ctx, 2)
	if err != nil {
		log.Fatal(err)
	}

	within, cancel := context.WithTimeout(ctx, 5*time.Second) // of the time that the platform gives
	defer cancel()
	if err := semaphores.Close(within); err != nil {
		log.Print("some grants end with their leases: ", err)
	}
	<-grant.Done()
	fmt.Println(errors.Is(grant.Err(), semaphore.ErrClosed))
	// Output: true
}

// FairSemaphore grants the requests of all processes in the order in which they came, so a large request is not
// starved by small ones.
func ExampleClient_FairSemaphore() {
	ctx := context.Background()
	gpus := newSemaphores().FairSemaphore("gpus")
	if err := gpus.SetPermits(ctx, 4); err != nil {
		log.Fatal(err)
	}
	training, err := gpus.Acquire(ctx, 3)
	if err != nil {
		log.Fatal(err)
	}
	granted := make(chan string, 2)
	request := func(what string, n int64) {
		gpus.AcquireFunc(ctx, n, func(g *semaphore.Grant, err error) {
			granted <- fmt.Sprint(what, " ", err)
			defer g.Release(ctx)
		})
	}
	request("large", 4)
	request("small", 1) // one is free, but the large request was first
	if err := training.Release(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-granted)
	fmt.Println(<-granted)
	// Output:
	// large <nil>
	// small <nil>
}
