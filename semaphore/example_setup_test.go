package semaphore_test

import (
	"log"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// newRedis returns a client of an empty Redis for an Example. In a program it is redis.NewClient,
// redis.NewFailoverClient or redis.NewClusterClient.
var newRedis = redistest.Open

// newSemaphores returns the Client that a process makes once: semaphore.New(rdb). It is closed after all
// examples.
func newSemaphores() *semaphore.Client {
	semaphores, err := semaphore.New(newRedis())
	if err != nil {
		log.Fatal(err)
	}
	redistest.AtEnd(semaphores.Close)
	return semaphores
}
