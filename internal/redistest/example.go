package redistest

import (
	"context"
	"log"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// databases is how many databases the shared server has. Tests use the first one, and each call of Open
// takes the next of the others.
const databases = 1024

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

// ExampleWheel returns a wheel for a client of examples. It is stopped when all tests and examples have run.
func ExampleWheel() *wheel.Wheel {
	w, err := wheel.New()
	if err != nil {
		log.Fatal(err)
	}
	AtEnd(func(ctx context.Context) error {
		_, err := w.Stop(ctx)
		return err
	})
	return w
}

// closeExamples calls the functions given to AtEnd. Then it waits until the default wheel, which examples use
// and which cannot be stopped, is empty: its goroutines end a tenth of a second later. A limiter is on the wheel
// for up to a second after its last call.
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
	for wheel.Default().Len() > 0 && ctx.Err() == nil {
		time.Sleep(pollInterval)
	}
}
