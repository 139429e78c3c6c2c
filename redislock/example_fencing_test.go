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
	locks, _, done := exampleClient()
	defer done()
	ctx := context.Background()
	orders := locks.Mutex("example:fenced", redislock.WithFencing())
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
		"example:fenced", redislock.WithFencing(), redislock.WithHandoff(0, 0),
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

// A service in Java takes the same locks with Redisson's getFencedLock, which counts on from the last token.
func ExampleSharedWithJava() {
	locks, rdb, done := exampleClient()
	defer done()
	ctx := context.Background()
	lock, err := locks.Mutex("example:shared", redislock.WithFencing(redislock.SharedWithJava())).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)

	fmt.Println("expires:", rdb.TTL(ctx, "redisson_lock_token:{example:shared}").Val() > 0)
	// Output: expires: false
}

// An Owner in the context makes locks reentrant: functions that lock can call each other.
func ExampleContextWithOwner() {
	locks, _, done := exampleClient()
	defer done()
	ctx := redislock.ContextWithOwner(context.Background(), &redislock.Owner{})
	account := locks.Mutex("example:account")

	deposit := func(ctx context.Context) error {
		return account.Do(ctx, func(context.Context) error {
			fmt.Println("deposit")
			return nil
		})
	}
	err := account.Do(ctx, func(ctx context.Context) error {
		fmt.Println("transfer")
		return deposit(ctx) // the caller holds the lock already
	})
	fmt.Println("error:", err)
	// Output:
	// transfer
	// deposit
	// error: <nil>
}

// LockFunc waits without a goroutine, so thousands of callers may wait.
func ExampleMutex_LockFunc() {
	locks, _, done := exampleClient()
	defer done()
	ctx := context.Background()

	served := make(chan struct{})
	locks.Mutex("example:later").LockFunc(ctx, func(l *redislock.Lock, err error) {
		defer close(served)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("held:", l.Valid(), "unlock:", l.Unlock(ctx))
	})
	<-served
	// Output:
	// held: true unlock: <nil>
}
