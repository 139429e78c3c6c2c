package semaphore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/cogwheel-go/cogwheel/semaphore"
)

// The permits of a Semaphore belong to grants, which are renewed until they are released.
func ExampleClient_Semaphore() {
	ctx := context.Background()
	uploads := newSemaphores().Semaphore("uploads", semaphore.WithLease(10*time.Second))
	if _, err := uploads.TrySetPermits(ctx, 5); err != nil {
		log.Fatal(err)
	}
	grant, err := uploads.Acquire(ctx, 2)
	if err != nil {
		log.Fatal(err)
	}
	state, err := uploads.State(ctx)
	fmt.Println(state.Held, "of", state.Free+state.Held, err)
	fmt.Println(grant.Release(ctx))
	// Output:
	// 2 of 5 <nil>
	// <nil>
}

// The context bounds the wait, not the time for which the permits are held.
func ExampleSemaphore_Acquire() {
	ctx := context.Background()
	uploads := newSemaphores().Semaphore("uploads")
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

// When the process of a holder dies, its permits are free when their lease is over.
func ExampleSemaphore_Acquire_holderCrashed() {
	ctx := context.Background()
	semaphores := newSemaphores()
	// Nothing renews this grant, as if its process had been killed a moment after it had acquired.
	crashing := semaphores.Semaphore("licences", semaphore.WithLease(2*time.Second), semaphore.WithoutRenewal())
	if err := crashing.SetPermits(ctx, 1); err != nil {
		log.Fatal(err)
	}
	if _, err := crashing.Acquire(ctx, 1); err != nil {
		log.Fatal(err)
	}

	grant, err := semaphores.Semaphore("licences").Acquire(ctx, 1) // waits for about two seconds
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("another process has the licence:", grant.Valid())
	fmt.Println(grant.Release(ctx))
	// Output:
	// another process has the licence: true
	// <nil>
}

// TryAcquire does not wait. It distinguishes permits that others hold from a failure of Redis.
func ExampleSemaphore_TryAcquire() {
	ctx := context.Background()
	uploads := newSemaphores().Semaphore("uploads")
	if err := uploads.SetPermits(ctx, 1); err != nil {
		log.Fatal(err)
	}
	for range 2 {
		switch grant, err := uploads.TryAcquire(ctx, 1); {
		case err == nil:
			fmt.Println("uploading")
			defer grant.Release(ctx)
		case errors.Is(err, semaphore.ErrNoPermits):
			fmt.Println("busy: try again later")
		default:
			log.Fatal(err)
		}
	}
	// Output:
	// uploading
	// busy: try again later
}

// AcquireFunc waits without a goroutine, so a million requests may wait. cancel ends the wait.
func ExampleSemaphore_AcquireFunc() {
	ctx := context.Background()
	conversions := newSemaphores().Semaphore("conversions")
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
func ExampleSemaphore_Release() {
	ctx := context.Background()
	seats := newSemaphores().Semaphore("seats", semaphore.WithLease(10*time.Minute))
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
	fmt.Println(seats.Release(ctx, id))
	fmt.Println("again:", errors.Is(seats.Release(ctx, id), semaphore.ErrNotHeld))
	// Output:
	// ends unless it is renewed in 10m0s
	// <nil>
	// again: true
}

// UpdateLease may shorten a lease, and Forever is that of a permit of a service in Java that has none.
func ExampleSemaphore_UpdateLease() {
	ctx := context.Background()
	seats := newSemaphores().Semaphore("seats", semaphore.WithLease(time.Hour), semaphore.WithoutRenewal())
	if err := seats.SetPermits(ctx, 10); err != nil {
		log.Fatal(err)
	}
	grant, err := seats.Acquire(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	defer grant.Release(ctx)
	id := grant.IDs()[0]
	if err := seats.UpdateLease(ctx, id, 10*time.Minute); err != nil {
		log.Fatal(err)
	}
	state, err := seats.State(ctx)
	if err != nil {
		log.Fatal(err)
	}
	left := state.Permits[0].Lease
	fmt.Println(left.Round(time.Minute), left == semaphore.Forever)
	// Output: 10m0s false
}

// SetPermits changes the number at any time. Grants stay; what is held beyond it is not granted again.
func ExampleSemaphore_SetPermits() {
	ctx := context.Background()
	jobs := newSemaphores().Semaphore("jobs")
	if err := jobs.SetPermits(ctx, 10); err != nil {
		log.Fatal(err)
	}
	grant, err := jobs.Acquire(ctx, 8)
	if err != nil {
		log.Fatal(err)
	}
	if err := jobs.SetPermits(ctx, 5); err != nil {
		log.Fatal(err)
	}
	free, err := jobs.Available(ctx)
	fmt.Println(free, err, grant.Valid())
	if err := grant.Release(ctx); err != nil {
		log.Fatal(err)
	}
	free, err = jobs.Available(ctx)
	fmt.Println(free, err)
	// Output:
	// -3 <nil> true
	// 5 <nil>
}
