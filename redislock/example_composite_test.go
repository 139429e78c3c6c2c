package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// TryLock takes all names or none.
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
	state, err := rooms.State(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range rooms.Names() {
		fmt.Println(name, "locked:", state.Names[name].Locked)
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

// State shows what each server says. Here one of three does not answer.
func ExampleQuorumMutex_State() {
	ctx := context.Background()
	down := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1}) // nothing listens there
	defer down.Close()
	quorum, err := redislock.NewQuorum([]redis.UniversalClient{newRedis(), newRedis(), down})
	if err != nil {
		log.Fatal(err)
	}
	defer quorum.Close(ctx)
	leader := quorum.Mutex("leader", redislock.WithMetadata("host-3"))
	lock, err := leader.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)

	state, err := leader.State(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(state.Locked, state.Holder.Metadata)
	for _, server := range state.Servers {
		fmt.Println("answers:", server.Err == nil, "locked:", server.Locked)
	}
	// Output:
	// true host-3
	// answers: true locked: true
	// answers: true locked: true
	// answers: false locked: false
}
