package ratelimit_test

import (
	"log"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// newRedis returns a client of an empty Redis for an Example. In a program it is redis.NewClient,
// redis.NewFailoverClient or redis.NewClusterClient.
var newRedis = redistest.Open

// newLimits returns the Client that a process makes once: ratelimit.New(rdb). It is closed after all examples.
func newLimits() *ratelimit.Client {
	limits, err := ratelimit.New(newRedis())
	if err != nil {
		log.Fatal(err)
	}
	redistest.AtEnd(limits.Close)
	return limits
}
