package docscheck_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Code blocks of README.md and docs/operations.md are the bodies of the readme functions. This test runs them.
func TestREADME_CodeRuns(t *testing.T) {
	ctx := t.Context()
	rdb := redistest.Start(t).Client(t)
	did = nil
	require.NoError(t, readmeClient())
	require.NoError(t, readmeWheel(ctx))
	require.NoError(t, readmeTyped(ctx))
	require.NoError(t, readmeRedislock(ctx, rdb))
	require.NoError(t, readmeToken(ctx, rdb))
	limits, err := ratelimit.New(rdb)
	require.NoError(t, err)
	defer limits.Close(ctx)
	require.NoError(t, readmeRatelimit(ctx, limits))
	semaphores, err := semaphore.New(rdb)
	require.NoError(t, err)
	defer semaphores.Close(ctx)
	require.NoError(t, readmeSemaphore(ctx, semaphores))
	require.NoError(t, readmeRenewal(ctx))
	locks, err := redislock.New(rdb)
	require.NoError(t, err)
	defer locks.Close(ctx)
	require.NoError(t, readmeCheck(ctx, locks, slog.New(slog.DiscardHandler)))
	require.Equal(t, []string{"app:stock:42", "app:api:{user-7}"}, readmePrefix(locks, limits))
	require.NoError(t, readmeOptions().Close())
	require.Equal(t, []string{"restock", "post", "serve", "serve", "serve"}, did)
}

func readmeClient() error {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"}) // github.com/redis/go-redis/v9
	_ = ctx
	return rdb.Close()
}

func readmeWheel(ctx context.Context) error {
	w, err := wheel.New() // or share wheel.Default()
	if err != nil {
		return err
	}

	closing, err := w.AfterFunc(30*time.Minute, func() { fmt.Println("order 7: unpaid, closed") })
	if err != nil {
		return err
	}
	// The customer pays. If Stop returns true, the function never runs, and the order stays open.
	if closing.Stop() {
		fmt.Println("order 7: paid")
	}

	left, err := w.Stop(ctx) // at the end of the program: left is what has not fired
	fmt.Println(len(left), "timers were left")
	return err
}

func readmeTyped(ctx context.Context) error {
	closing, err := wheel.NewTyped(func(order uint32) { fmt.Println("closed:", order) })
	if err != nil {
		return err
	}
	if _, err := closing.Add(30*time.Minute, 7); err != nil {
		return err
	}
	left, err := closing.Stop(ctx) // []wheel.UnprocessedValue[uint32]: order 7, and the time that was left
	if err == nil && (len(left) != 1 || left[0].Value != 7) {
		return fmt.Errorf("left: %v", left)
	}
	return err
}

func readmeRedislock(ctx context.Context, rdb redis.UniversalClient) error {
	locks, err := redislock.New(rdb) // once per process
	if err != nil {
		return err
	}
	defer locks.Close(ctx)

	stock := locks.Mutex("stock:42", redislock.WithLease(10*time.Second)) // renewed for as long as it is held
	err = stock.Do(ctx, func(ctx context.Context) error {
		return restock(ctx) // no other process holds the lock; ctx ends if the lock is lost
	})
	if errors.Is(err, redislock.ErrLost) {
		log.Print("the lock was lost before restock returned")
	}
	return err
}

func readmeToken(ctx context.Context, rdb redis.UniversalClient) error {
	locks, err := redislock.New(rdb)
	if err != nil {
		return err
	}
	defer locks.Close(ctx)

	held, err := locks.Mutex("ledger", redislock.WithFencing()).Lock(ctx) // waits; TryLock does not
	if err != nil {
		return err
	}
	defer held.Unlock(ctx) // sent even if ctx has ended
	return post(held.Context(ctx), held.Token())
}

func readmeRatelimit(ctx context.Context, limits *ratelimit.Client) error {
	perUser := limits.Limiter("api", ratelimit.PerSecond(10).WithBurst(20))
	switch r, err := perUser.Allow(ctx, "user-7"); {
	case err != nil:
		return err // Redis is down, for example: the default policy, FailClosed, returns an error
	case !r.Allowed:
		return fmt.Errorf("try again in %v", r.RetryAfter)
	}
	return serve(ctx)
}

func readmeSemaphore(ctx context.Context, semaphores *semaphore.Client) error {
	exports := semaphores.Semaphore("exports", semaphore.WithLease(10*time.Second)) // the default is 30 s
	if _, err := exports.TrySetPermits(ctx, 5); err != nil {                        // the first process sets them
		return err
	}
	grant, err := exports.Acquire(ctx, 1)
	if err != nil {
		return err
	}
	defer grant.Release(ctx)         // sent even if ctx has ended
	return serve(grant.Context(ctx)) // at most five in all processes; the context ends if the permit is lost
}

func readmeRenewal(ctx context.Context) error {
	renewals, err := renewal.New(wheel.Default())
	if err != nil {
		return err
	}
	defer renewals.Close(ctx)
	server, err := renewals.Destination(backend{}) // backend.Renew renews many leases in one request
	if err != nil {
		return err
	}

	sentAt := time.Now() // the lease counts from the instant before the request
	// ... request the lease from the server ...
	lease, err := server.Add(renewal.Spec{Key: "shard-3", ID: "worker-1", TTL: 10 * time.Second, SentAt: sentAt})
	if err != nil {
		return err
	}
	defer lease.Close(nil)           // ends the renewals; then give the lease back to the server
	return serve(lease.Context(ctx)) // the context ends before the lease can end on the server
}

func readmeCheck(ctx context.Context, locks *redislock.Client, logger *slog.Logger) error {
	report, err := locks.Check(ctx, locks.FairMutex("app:jobs"), locks.Mutex("app:stock:42"))
	if err != nil {
		return err // one line that names every failure
	}
	logger.Info("redis checked", "report", report.String())
	return nil
}

func readmePrefix(locks *redislock.Client, limits *ratelimit.Client) (keys []string) {
	const prefix = "app:"

	stock := locks.Mutex(prefix + "stock:42")
	perUser := limits.Limiter(prefix+"api", ratelimit.PerSecond(10))
	return []string{stock.Name(), perUser.RedisKey("user-7")}
}

func readmeOptions() *redis.Client {
	rdb := redis.NewClient(&redis.Options{
		Addr:        "redis.internal:6379",
		DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second,
		MaxRetries: 1, DialerRetries: 1, ContextTimeoutEnabled: true,
	})
	return rdb
}

// did records the calls of the functions that the code blocks leave to the reader.
var did []string

func restock(ctx context.Context) error {
	did = append(did, "restock")
	return ctx.Err()
}

func post(ctx context.Context, token int64) error {
	if token > 0 {
		did = append(did, "post")
	}
	return ctx.Err()
}

func serve(ctx context.Context) error {
	did = append(did, "serve")
	return ctx.Err()
}

type backend struct{}

func (backend) Renew(context.Context, *renewal.Batch) error { return nil }
