package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// TryLock takes all names or none. The state of each name is that of its Mutex.
func ExampleMultiMutex_TryLock() {
	ctx := context.Background()
	locks := newLocks()
	guest, err := locks.Mutex("room:2").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer guest.Unlock(ctx)

	rooms := locks.MultiMutex([]string{"room:3", "room:1", "room:2"})
	_, err = rooms.TryLock(ctx)
	if locked, ok := errors.AsType[*redislock.LockedError](err); ok {
		fmt.Println(locked.Name, "is taken")
	}
	for _, name := range rooms.Names() {
		state, err := locks.Mutex(name).State(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(name, "locked:", state.Locked)
	}
	// Output:
	// room:2 is taken
	// room:1 locked: false
	// room:2 locked: true
	// room:3 locked: false
}

// A lock on a majority of independent servers outlives the loss of a minority of them. Here one of three is
// down.
func ExampleNewQuorum() {
	ctx := context.Background()
	down := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1}) // nothing listens there
	defer down.Close()
	quorum, err := redislock.NewQuorum([]redis.UniversalClient{newRedis(), newRedis(), down})
	if err != nil {
		log.Fatal(err)
	}
	defer quorum.Close(ctx)

	err = quorum.Mutex("leader").Do(ctx, func(ctx context.Context) error {
		fmt.Println("leads")
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// leads
	// <nil>
}

// Without a majority there is no lock: neither for this caller nor, as far as it can know, for others.
func ExampleQuorumMutex_TryLock() {
	ctx := context.Background()
	servers := []redis.UniversalClient{newRedis()}
	for range 2 {
		down := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1}) // nothing listens there
		defer down.Close()
		servers = append(servers, down)
	}
	quorum, err := redislock.NewQuorum(servers)
	if err != nil {
		log.Fatal(err)
	}
	defer quorum.Close(ctx)

	switch _, err := quorum.Mutex("leader").TryLock(ctx); {
	case err == nil:
		fmt.Println("leads")
	case errors.Is(err, redislock.ErrLocked):
		fmt.Println("another leads")
	case errors.Is(err, redislock.ErrNoQuorum):
		fmt.Println("too few servers answer")
	}
	// Output: too few servers answer
}

// The Mutex of each name frees a MultiMutex.
func ExampleMultiMutex_Names() {
	ctx := context.Background()
	locks := newLocks()
	rooms := locks.MultiMutex([]string{"room:5", "room:4"})
	lock, err := rooms.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}

	for _, name := range rooms.Names() {
		freed, err := locks.Mutex(name).ForceUnlock(ctx)
		fmt.Println(name, freed, err)
	}
	fmt.Println(errors.Is(lock.Unlock(ctx), redislock.ErrLost))
	// Output:
	// room:4 true <nil>
	// room:5 true <nil>
	// true
}

// A Client for each server shows and frees the lock of a Quorum. Here one of three servers is down.
func ExampleQuorum_Mutex() {
	ctx := context.Background()
	down := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1}) // nothing listens there
	defer down.Close()
	servers := []redis.UniversalClient{newRedis(), newRedis(), down}
	quorum, err := redislock.NewQuorum(servers)
	if err != nil {
		log.Fatal(err)
	}
	defer quorum.Close(ctx)
	lock, err := quorum.Mutex("leader", redislock.WithMetadata("host-3")).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}

	for i, rdb := range servers { // those that were given to NewQuorum
		locks, err := redislock.New(rdb)
		if err != nil {
			log.Fatal(err)
		}
		freed, err := locks.Mutex("leader").ForceUnlock(ctx)
		fmt.Println("server", i, "freed:", freed, "answers:", err == nil)
		_ = locks.Close(ctx)
	}
	fmt.Println(errors.Is(lock.Unlock(ctx), redislock.ErrLost))
	// Output:
	// server 0 freed: true answers: true
	// server 1 freed: true answers: true
	// server 2 freed: false answers: false
	// true
}
