package redislock_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// fencedStore is a resource that remembers the highest token and refuses lower ones.
type fencedStore struct {
	seen  int64
	value string
}

func (r *fencedStore) write(token int64, value string) bool {
	if token < r.seen {
		return false
	}
	r.seen, r.value = token, value
	return true
}

// A fencing token protects against a holder that was suspended, lost the lock, and acts afterwards. No lock
// can prevent that by itself.
func ExampleWithFencing() {
	ctx := context.Background()
	locks := newLocks()
	orders := locks.Mutex("fenced", redislock.WithFencing())
	var store fencedStore

	first, err := orders.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	// An operator frees the lock of a holder that seems dead.
	if _, err := orders.ForceUnlock(ctx); err != nil {
		log.Fatal(err)
	}
	second, err := locks.Mutex(
		"fenced", redislock.WithFencing(), redislock.WithHandoff(0, 0),
	).TryLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("new holder:", store.write(second.Token(), "new"))
	fmt.Println("old holder:", store.write(first.Token(), "old"))
	fmt.Println("value:", store.value)
	fmt.Println("lost:", first.Unlock(ctx) != nil, "unlocked:", second.Unlock(ctx) == nil)
	// Output:
	// new holder: true
	// old holder: false
	// value: new
	// lost: true unlocked: true
}
