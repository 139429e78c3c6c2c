package semaphore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/cogwheel-go/cogwheel/semaphore"
)

// A grant can be lost: here an operator takes its permit away. Its contexts end, and their cause says why.
func ExampleGrant_Context() {
	ctx := context.Background()
	slots := newSemaphores().Semaphore("slots", semaphore.WithLease(5*time.Second))
	if err := slots.SetPermits(ctx, 1); err != nil {
		log.Fatal(err)
	}
	grant, err := slots.Acquire(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	working := grant.Context(ctx)
	if err := slots.Release(ctx, grant.IDs()...); err != nil {
		log.Fatal(err)
	}
	<-working.Done() // at the next renewal
	fmt.Println("lost:", errors.Is(context.Cause(working), semaphore.ErrLost), "valid:", grant.Valid())
	// Output: lost: true valid: false
}

// Release tells whether the permits were still held, which is whether the work was counted to its end.
func ExampleGrant_Release() {
	ctx := context.Background()
	slots := newSemaphores().Semaphore("slots")
	if err := slots.SetPermits(ctx, 1); err != nil {
		log.Fatal(err)
	}
	grant, err := slots.Acquire(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	switch err := grant.Release(ctx); {
	case err == nil:
		fmt.Println("done, and free for others")
	case errors.Is(err, semaphore.ErrLost):
		log.Print("others may have worked beyond the limit")
	case errors.Is(err, semaphore.ErrUnconfirmed):
		log.Print("done; the release is retried in the background")
	}
	fmt.Println(errors.Is(grant.Release(ctx), semaphore.ErrNotHeld))
	// Output:
	// done, and free for others
	// true
}

// Extend lets a grant outlast a longer outage of Redis, before work that must not be interrupted.
func ExampleGrant_Extend() {
	ctx := context.Background()
	ports := newSemaphores().Semaphore("ports", semaphore.WithLease(10*time.Second))
	if err := ports.SetPermits(ctx, 1); err != nil {
		log.Fatal(err)
	}
	grant, err := ports.Acquire(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	defer grant.Release(ctx)

	if err := grant.Extend(ctx, 5*time.Minute); err != nil {
		log.Fatal(err) // if it does not match ErrLost, the permits are held as before
	}
	fmt.Println(time.Until(grant.Deadline()).Round(time.Minute))
	// Output: 5m0s
}

// Later grants have greater tokens. What is protected can refuse a holder that was suspended and acts too late.
func ExampleGrant_Token() {
	ctx := context.Background()
	writers := newSemaphores().Semaphore("writers")
	if err := writers.SetPermits(ctx, 2); err != nil {
		log.Fatal(err)
	}
	earlier, err := writers.Acquire(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	defer earlier.Release(ctx)
	later, err := writers.Acquire(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	defer later.Release(ctx)
	fmt.Println(earlier.Token() < later.Token())
	// Output: true
}

// Done is for a select loop.
func ExampleGrant_Done() {
	ctx := context.Background()
	feeds := newSemaphores().Semaphore("feeds", semaphore.WithLease(2*time.Second), semaphore.WithoutRenewal())
	if err := feeds.SetPermits(ctx, 1); err != nil {
		log.Fatal(err)
	}
	grant, err := feeds.Acquire(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	messages := make(chan string, 1)
	messages <- "hello"
	for {
		select {
		case m := <-messages:
			fmt.Println(m)
		case <-grant.Done():
			fmt.Println("lost:", errors.Is(grant.Err(), semaphore.ErrLost))
			return
		}
	}
	// Output:
	// hello
	// lost: true
}
