package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// Readers share the lock. A writer holds it alone and may become a reader without letting another writer in.
func ExampleRWMutex_Downgrade() {
	locks, _, done := exampleClient()
	defer done()
	ctx := context.Background()

	catalogue := locks.RWMutex("example:catalogue")
	writer, err := catalogue.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_, err = catalogue.TryRLock(ctx)
	fmt.Println("locked while another writes:", errors.Is(err, redislock.ErrLocked))

	reader, err := catalogue.Downgrade(ctx, writer)
	if err != nil {
		log.Fatal(err)
	}
	other, err := catalogue.TryRLock(ctx)
	fmt.Println("locked while another reads:", errors.Is(err, redislock.ErrLocked))
	fmt.Println(reader.Unlock(ctx), other.Unlock(ctx))
	// Output:
	// locked while another writes: true
	// locked while another reads: false
	// <nil> <nil>
}

// MultiMutex locks both accounts or neither, in whatever order the callers name them.
func ExampleClient_MultiMutex() {
	locks, _, done := exampleClient()
	defer done()

	err := locks.MultiMutex(
		[]string{"example:account:7", "example:account:3"},
	).Do(context.Background(), func(ctx context.Context) error {
		fmt.Println("moving money from 7 to 3")
		return ctx.Err()
	})
	fmt.Println("error:", err)
	// Output:
	// moving money from 7 to 3
	// error: <nil>
}

// LockFunc waits for one name after the other without a goroutine.
func ExampleMultiMutex_LockFunc() {
	locks, _, done := exampleClient()
	defer done()
	ctx := context.Background()

	other, err := locks.Mutex("example:room:2", redislock.WithMetadata("cleaning")).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	rooms, moved := locks.MultiMutex([]string{"example:room:1", "example:room:2"}), make(chan struct{})
	rooms.LockFunc(ctx, func(l *redislock.Lock, err error) {
		defer close(moved)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("moving from room 1 to 2; unlock:", l.Unlock(ctx))
	})

	state, err := locks.Mutex("example:room:2").State(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("locked:", state.Locked, state.Holders[0].Metadata)
	if err := other.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	<-moved
	// Output:
	// locked: true cleaning
	// moving from room 1 to 2; unlock: <nil>
}
