package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/cogwheel-go/cogwheel/redislock"
)

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

// Reader and Writer are the two sides as Mutexes, with Do, LockFunc and State.
func ExampleRWMutex_Reader() {
	ctx := context.Background()
	settings := newLocks().RWMutex("settings")

	err := settings.Writer().Do(ctx, func(context.Context) error {
		fmt.Println("changing the settings")
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	err = settings.Reader().Do(ctx, func(context.Context) error {
		fmt.Println("reading the settings")
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// changing the settings
	// reading the settings
}

// A reader cannot become the writer: of two readers that tried, each would wait for the other for ever. With an
// Owner the attempt is an error. Unlock, and lock for writing.
func ExampleRWMutex_Lock_upgrade() {
	ctx := redislock.ContextWithOwner(context.Background(), &redislock.Owner{})
	index := newLocks().RWMutex("index")
	reader, err := index.RLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_, err = index.Lock(ctx)
	fmt.Println(errors.Is(err, redislock.ErrUpgrade))

	if err := reader.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	writer, err := index.Lock(ctx) // another may have written meanwhile: read again
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(writer.Unlock(ctx))
	// Output:
	// true
	// <nil>
}
