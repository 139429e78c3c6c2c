package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// With an Owner, one task may lock again what it holds. The key is free when each Lock was unlocked.
func ExampleOwner() {
	locks := newLocks()
	document := locks.Mutex("document:5")
	task := redislock.ContextWithOwner(context.Background(), new(redislock.Owner)) // for each request, say

	outer, err := document.Lock(task)
	if err != nil {
		log.Fatal(err)
	}
	inner, err := document.Lock(task) // does not ask Redis
	if err != nil {
		log.Fatal(err)
	}
	other := redislock.ContextWithOwner(context.Background(), new(redislock.Owner))
	for _, lock := range []*redislock.Lock{inner, outer} {
		if err := lock.Unlock(task); err != nil {
			log.Fatal(err)
		}
		_, err = document.TryLock(other)
		fmt.Println("held for others:", errors.Is(err, redislock.ErrLocked))
	}
	// Output:
	// held for others: true
	// held for others: false
}
