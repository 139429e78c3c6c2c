package semaphore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/cogwheel-go/cogwheel/semaphore"
)

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

// TryAcquire does not wait. It distinguishes permits that are taken from a failure of Redis.
func ExampleCountingSemaphore_TryAcquire() {
	ctx := context.Background()
	tickets := newSemaphores().CountingSemaphore("tickets")
	if _, err := tickets.TrySetPermits(ctx, 2); err != nil {
		log.Fatal(err)
	}
	for _, n := range []int64{1, 2, 1} {
		switch err := tickets.TryAcquire(ctx, n); {
		case err == nil:
			fmt.Println(n, "sold")
		case errors.Is(err, semaphore.ErrNoPermits):
			fmt.Println(n, "not left")
		default:
			log.Fatal(err)
		}
	}
	// Output:
	// 1 sold
	// 2 not left
	// 1 sold
}

// AcquireFunc waits without a goroutine: here, for a delivery.
func ExampleCountingSemaphore_AcquireFunc() {
	ctx := context.Background()
	stock := newSemaphores().CountingSemaphore("stock:42")
	if _, err := stock.TrySetPermits(ctx, 0); err != nil {
		log.Fatal(err)
	}
	served := make(chan error)
	stock.AcquireFunc(ctx, 5, func(err error) { served <- err })
	if err := stock.AddPermits(ctx, 20); err != nil { // the delivery
		log.Fatal(err)
	}
	fmt.Println(<-served)
	left, err := stock.Available(ctx)
	fmt.Println("left:", left, err)
	// Output:
	// <nil>
	// left: 15 <nil>
}

// WithMax finds the bug that releases more than was acquired.
func ExampleWithMax() {
	ctx := context.Background()
	connections := newSemaphores().CountingSemaphore("connections", semaphore.WithMax(10))
	if _, err := connections.TrySetPermits(ctx, 10); err != nil {
		log.Fatal(err)
	}
	if err := connections.Acquire(ctx, 1); err != nil {
		log.Fatal(err)
	}
	fmt.Println(connections.Release(ctx, 1))
	fmt.Println(errors.Is(connections.Release(ctx, 1), semaphore.ErrOverRelease))
	// Output:
	// <nil>
	// true
}

// Drain takes all that is free, to stop new work before maintenance.
func ExampleCountingSemaphore_Drain() {
	ctx := context.Background()
	jobs := newSemaphores().CountingSemaphore("jobs")
	if _, err := jobs.TrySetPermits(ctx, 8); err != nil {
		log.Fatal(err)
	}
	taken, err := jobs.Drain(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("taken:", taken)
	fmt.Println(jobs.Release(ctx, taken)) // after the maintenance
	// Output:
	// taken: 8
	// <nil>
}

// ReleaseIfExists does not bring back a semaphore that has expired.
func ExampleCountingSemaphore_ReleaseIfExists() {
	ctx := context.Background()
	rdb := newRedis()
	semaphores, err := semaphore.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer semaphores.Close(ctx)
	sale := semaphores.CountingSemaphore("sale:black-friday")
	if _, err := sale.TrySetPermits(ctx, 100); err != nil {
		log.Fatal(err)
	}
	rdb.Expire(ctx, "sale:black-friday", 24*time.Hour)
	existed, err := sale.ReleaseIfExists(ctx, 1)
	fmt.Println(existed, err)
	rdb.Del(ctx, "sale:black-friday") // the sale is over
	existed, err = sale.ReleaseIfExists(ctx, 1)
	fmt.Println(existed, err)
	// Output:
	// true <nil>
	// false <nil>
}

// A key that holds something else is left alone.
func ExampleCountingSemaphore_Acquire_wrongKind() {
	ctx := context.Background()
	rdb := newRedis()
	rdb.RPush(ctx, "jobs", "a list")
	semaphores, err := semaphore.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer semaphores.Close(ctx)
	err = semaphores.CountingSemaphore("jobs").Acquire(ctx, 1)
	fmt.Println(errors.Is(err, semaphore.ErrWrongKind))
	// Output: true
}
