package semaphore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// newRedis returns a client of an empty Redis for an Example. In a program it is redis.NewClient,
// redis.NewFailoverClient or redis.NewClusterClient.
var newRedis = redistest.Open

// newSemaphores returns the Client that a process makes once: semaphore.New(rdb). It is closed after all
// examples.
func newSemaphores() *semaphore.Client {
	semaphores, err := semaphore.New(newRedis())
	if err != nil {
		log.Fatal(err)
	}
	redistest.AtEnd(semaphores.Close)
	return semaphores
}

// One Client for the process, and at most five exports at a time in all processes.
func Example() {
	ctx := context.Background()
	rdb := newRedis() // redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	semaphores, err := semaphore.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer semaphores.Close(ctx) // releases what is still held

	exports := semaphores.Semaphore("exports", 0)
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

// The context bounds the wait, not the time for which the permits are held.
func ExampleSemaphore_Acquire() {
	ctx := context.Background()
	uploads := newSemaphores().Semaphore("uploads", 0)
	_, err := uploads.Acquire(ctx, 1)
	fmt.Println("the number was never set:", errors.Is(err, semaphore.ErrNotSet))

	if err := uploads.SetPermits(ctx, 1); err != nil {
		log.Fatal(err)
	}
	_, err = uploads.Acquire(ctx, 2)
	fmt.Println("there are not so many:", errors.Is(err, semaphore.ErrExceedsPermits))

	grant, err := uploads.Acquire(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	defer grant.Release(ctx)
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_, err = uploads.Acquire(short, 1)
	fmt.Println("gave up:", errors.Is(err, context.DeadlineExceeded))
	// Output:
	// the number was never set: true
	// there are not so many: true
	// gave up: true
}

// AcquireFunc waits without a goroutine, so a million requests may wait. cancel ends the wait.
func ExampleSemaphore_AcquireFunc() {
	ctx := context.Background()
	conversions := newSemaphores().Semaphore("conversions", 0)
	if err := conversions.SetPermits(ctx, 1); err != nil {
		log.Fatal(err)
	}
	current, err := conversions.Acquire(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error)
	convert := func(g *semaphore.Grant, err error) {
		defer g.Release(ctx) // harmless on a nil Grant
		ended <- err
	}
	cancel := conversions.AcquireFunc(ctx, 1, convert)
	cancel() // the visitor has left
	fmt.Println(errors.Is(<-ended, context.Canceled))

	conversions.AcquireFunc(ctx, 1, convert)
	if err := current.Release(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-ended)
	// Output:
	// true
	// <nil>
}

// An operator looks at permits by their ids, in whatever process they are held, and takes them away.
func ExampleSemaphore_ReleaseIDs() {
	ctx := context.Background()
	seats := newSemaphores().Semaphore("seats", 0, semaphore.WithLease(10*time.Minute))
	if err := seats.SetPermits(ctx, 10); err != nil {
		log.Fatal(err)
	}
	grant, err := seats.Acquire(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	id := grant.IDs()[0] // from a log, say
	state, err := seats.State(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("ends unless it is renewed in", state.Permits[0].Lease.Round(time.Minute))
	fmt.Println(seats.ReleaseIDs(ctx, id))
	fmt.Println("again:", errors.Is(seats.ReleaseIDs(ctx, id), semaphore.ErrNotHeld))
	// Output:
	// ends unless it is renewed in 10m0s
	// <nil>
	// again: true
}

// A grant can be lost: here an operator takes its permit away. Its contexts end, and their cause says why.
func ExampleGrant_Context() {
	ctx := context.Background()
	slots := newSemaphores().Semaphore("slots", 0, semaphore.WithLease(5*time.Second))
	if err := slots.SetPermits(ctx, 1); err != nil {
		log.Fatal(err)
	}
	grant, err := slots.Acquire(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	working := grant.Context(ctx)
	if err := slots.ReleaseIDs(ctx, grant.IDs()...); err != nil {
		log.Fatal(err)
	}
	<-working.Done() // at the next renewal
	fmt.Println("lost:", errors.Is(context.Cause(working), semaphore.ErrLost), "valid:", grant.Valid())
	// Output: lost: true valid: false
}

// A CountingSemaphore is a number that any process takes from and adds to, as Redisson's getSemaphore(name).
// Permits of a process that dies do not come back; use a Semaphore where they should.
func ExampleClient_CountingSemaphore() {
	ctx := context.Background()
	stock := newSemaphores().CountingSemaphore("stock:42")
	if _, err := stock.TrySetPermits(ctx, 3); err != nil {
		log.Fatal(err)
	}
	if err := stock.Acquire(ctx, 2); err != nil { // two pieces are sold
		log.Fatal(err)
	}
	if err := stock.Release(ctx, 1); err != nil { // one comes back
		log.Fatal(err)
	}
	left, err := stock.Available(ctx)
	fmt.Println("left:", left, err)
	// Output: left: 2 <nil>
}
