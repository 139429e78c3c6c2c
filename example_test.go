package cogwheel_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// The examples of README.md. Those that need a server run in TestExamples.

func Example_wheel() {
	w, err := wheel.New() // or share wheel.Default()
	if err != nil {
		log.Fatal(err)
	}
	defer w.Stop(context.Background())

	closing, err := w.AfterFunc(30*time.Minute, func() { fmt.Println("order 7: unpaid, closed") })
	if err != nil {
		log.Fatal(err)
	}
	// The customer pays. Stop says whether that was in time: if it returns true, the order is never closed.
	if closing.Stop() {
		fmt.Println("order 7: paid")
	}
	// Output: order 7: paid
}

//nolint:testableexamples // runs in TestExamples
func Example_redislock() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS_ADDR")})
	defer rdb.Close()
	locks, err := redislock.New(rdb) // once per process
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)

	stock := locks.Mutex("stock:42", redislock.WithLease(10*time.Second)) // renewed for as long as it is held
	err = stock.Do(ctx, func(ctx context.Context) error {
		return restock(ctx) // nobody else is here, in any process; ctx ends should the lock be lost
	})
	if errors.Is(err, redislock.ErrLost) {
		log.Print("the lock was lost before the work was done")
	}
}

//nolint:testableexamples // runs in TestExamples
func Example_renewal() {
	ctx := context.Background()
	renewals, err := renewal.New(wheel.Default())
	if err != nil {
		log.Fatal(err)
	}
	defer renewals.Close(ctx)
	server, err := renewals.Destination(backend{}) // its one method renews many leases in one request
	if err != nil {
		log.Fatal(err)
	}

	sentAt := time.Now() // now ask the server for the lease; what counts is the instant before the request
	lease, err := server.Add(renewal.Spec{Key: "shard-3", ID: "worker-1", TTL: 10 * time.Second, SentAt: sentAt})
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Close(nil)    // ends the renewals; give the lease back afterwards
	serve(lease.Context(ctx)) // ends with renewal.ErrLost before the server can give the lease to another
}

// What the examples leave to their reader.

var done []string

func restock(ctx context.Context) error {
	done = append(done, "restock")
	return ctx.Err()
}

func serve(ctx context.Context) {
	done = append(done, "serve")
	if ctx.Err() != nil {
		panic(ctx.Err())
	}
}

type backend struct{}

func (backend) Renew(context.Context, *renewal.Batch) error { return nil }

func TestMain(m *testing.M) {
	// The shared wheel lasts as long as the process.
	redistest.Main(m, goleak.IgnoreAnyFunction("github.com/cogwheel-go/cogwheel/wheel.(*core).work"))
}

func TestExamples(t *testing.T) {
	t.Setenv("REDIS_ADDR", redistest.Start(t).Addr())
	done = nil
	Example_redislock()
	Example_renewal()
	require.Equal(t, []string{"restock", "serve"}, done)
}
