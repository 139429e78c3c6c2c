package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// Unlock tells whether the lock was still held, which is whether the work was protected to its end.
func ExampleLock_Unlock() {
	ctx := context.Background()
	lock, err := newLocks().Mutex("transfer:9").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}

	switch err := lock.Unlock(ctx); {
	case err == nil:
		fmt.Println("done, and free for others")
	case errors.Is(err, redislock.ErrLost):
		log.Print("another may have worked at the same time")
	case errors.Is(err, redislock.ErrUnconfirmed):
		log.Print("done; the release is retried in the background")
	}
	fmt.Println(errors.Is(lock.Unlock(ctx), redislock.ErrNotHeld))
	// Output:
	// done, and free for others
	// true
}

// A context of the lock ends with the lock. Its cause says why.
func ExampleLock_Context() {
	ctx := context.Background()
	lock, err := newLocks().Mutex("import").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	importing := lock.Context(ctx) // for database/sql, net/http and all else that takes a context
	fmt.Println(importing.Err())

	if err := lock.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	<-importing.Done()
	fmt.Println(importing.Err(), errors.Is(context.Cause(importing), redislock.ErrNotHeld))
	// Output:
	// <nil>
	// context canceled true
}

// Valid is the check right before an effect that must not overlap with another holder's. Unlike Done it is
// right at once when a suspended process wakes.
func ExampleLock_Valid() {
	ctx := context.Background()
	lock, err := newLocks().Mutex("valve:3").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	open := func() {
		if !lock.Valid() {
			fmt.Println("not held: the valve stays as it is")
			return
		}
		fmt.Println("opening the valve")
	}
	open()
	fmt.Println("certain for seconds to come:", time.Until(lock.Deadline()) > time.Second)
	if err := lock.Unlock(ctx); err != nil {
		log.Fatal(err)
	}
	open()
	// Output:
	// opening the valve
	// certain for seconds to come: true
	// not held: the valve stays as it is
}

// Extend lets a lock outlast a longer outage of Redis, before work that must not be interrupted.
func ExampleLock_Extend() {
	ctx := context.Background()
	lock, err := newLocks().Mutex("firmware", redislock.WithLease(10*time.Second)).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)

	if err := lock.Extend(ctx, 5*time.Minute); err != nil {
		log.Fatal(err) // if it does not match ErrLost, the lock is held as before
	}
	fmt.Println(time.Until(lock.Deadline()).Round(time.Minute))
	// Output: 5m0s
}

// Each hold has a higher token than those before it. A table that keeps the token refuses a holder that was
// suspended and writes too late: UPDATE plan SET text = $1, token = $2 WHERE id = 7 AND token <= $2.
func ExampleLock_Token() {
	ctx := context.Background()
	plan := newLocks().Mutex("plan:7", redislock.WithFencing())
	var tokens []int64
	for range 2 {
		lock, err := plan.Lock(ctx)
		if err != nil {
			log.Fatal(err)
		}
		tokens = append(tokens, lock.Token())
		if err := lock.Unlock(ctx); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("rises:", tokens[0] < tokens[1])
	// Output: rises: true
}
