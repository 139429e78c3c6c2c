package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// Check tells a service at its start what would fail later. Here the user lacks a right that locks need.
func ExampleClient_Check() {
	ctx := context.Background()
	admin := newRedis()
	err := admin.Do(ctx, "ACL", "SETUSER", "shop", "reset", "on", ">secret", "~*", "&*", "+@all", "-pexpire").Err()
	if err != nil {
		log.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: admin.Options().Addr, Username: "shop", Password: "secret"})
	defer rdb.Close()
	locks, err := redislock.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)

	report, err := locks.Check(ctx, locks.Mutex("orders"), locks.RWMutex("catalogue")) // what the service uses
	if report == nil {
		log.Fatal(err)
	}
	fmt.Println("ready:", err == nil)
	for _, finding := range report.Findings {
		if finding.Level == "failure" {
			fmt.Println(finding.Subject, finding.Missing)
		}
	}
	// Output:
	// ready: false
	// commands [+pexpire]
}

// State shows what Redis knows of a lock, for an operator. ForceUnlockHolder then frees it from that holder
// only, not from one that has taken the lock since.
func ExampleMutex_ForceUnlockHolder() {
	ctx := context.Background()
	migration := newLocks().Mutex("migration",
		redislock.WithMetadata("host-3, deploy 1841"), redislock.WithLease(5*time.Minute))
	if _, err := migration.Lock(ctx); err != nil {
		log.Fatal(err)
	}

	state, err := migration.State(ctx)
	if err != nil {
		log.Fatal(err)
	}
	holder := state.Holders[0]
	fmt.Println(state.Locked, holder.Metadata, state.TTL.Round(time.Minute))

	freed, err := migration.ForceUnlockHolder(ctx, holder.ID)
	fmt.Println(freed, err)
	freed, err = migration.ForceUnlockHolder(ctx, holder.ID)
	fmt.Println(freed, err)
	// Output:
	// true host-3, deploy 1841 5m0s
	// true <nil>
	// false <nil>
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
