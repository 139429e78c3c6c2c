package redistest

import (
	"context"
	"log"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// databases is how many databases the shared server has. Tests use the first one, and each call of Open
// takes the next of the others.
const databases = 1024

// DefaultWheel is the option of Main for packages whose examples use the default wheel, as most programs do. It
// is never stopped, and its worker ends only when the time of the last entry is over, even if that was stopped.
var DefaultWheel = goleak.IgnoreAnyFunction("github.com/cogwheel-go/cogwheel/wheel.(*scheduler).work")

// opened is what examples have opened. It is closed when all tests and examples have run.
var opened struct {
	mu      sync.Mutex
	clients int
	closing []func(context.Context) error
}

// Open returns a client of an empty database on the shared server, for an Example, which has no testing.TB.
// The client is closed when all tests and examples of the binary have run. Open ends the process on an error.
// The binary's TestMain must call [Main].
func Open() *redis.Client {
	s, err := sharedServer()
	if err != nil {
		log.Fatal(err)
	}
	opened.mu.Lock()
	db := 1 + opened.clients%(databases-1)
	opened.clients++
	opened.mu.Unlock()
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), DB: db})
	if err := rdb.FlushDB(context.Background()).Err(); err != nil {
		log.Fatal(err)
	}
	AtEnd(func(context.Context) error { return rdb.Close() })
	return rdb
}

// AtEnd calls closing when all tests and examples of the binary have run, the last one given first.
func AtEnd(closing func(context.Context) error) {
	opened.mu.Lock()
	defer opened.mu.Unlock()
	opened.closing = append(opened.closing, closing)
}

// closeExamples calls the functions given to AtEnd.
func closeExamples() {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	opened.mu.Lock()
	defer opened.mu.Unlock()
	for _, closing := range slices.Backward(opened.closing) {
		if err := closing(ctx); err != nil {
			log.Fatal(err)
		}
	}
	opened.closing = nil
}
