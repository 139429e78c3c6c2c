package redislock_test

import (
	"log"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// newRedis returns a client of an empty Redis for an Example. In a program it is redis.NewClient,
// redis.NewFailoverClient or redis.NewClusterClient.
var newRedis = redistest.Open

// newLocks returns the Client that a process makes once: redislock.New(rdb). It is closed after all examples.
func newLocks() *redislock.Client {
	locks, err := redislock.New(newRedis())
	if err != nil {
		log.Fatal(err)
	}
	redistest.AtEnd(locks.Close)
	return locks
}
