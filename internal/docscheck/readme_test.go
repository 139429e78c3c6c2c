package docscheck_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
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
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Code blocks of README.md and of pages in docs are the bodies of the readme functions. This test runs them.
func TestREADME_CodeRuns(t *testing.T) {
	ctx := t.Context()
	rdb := redistest.Start(t).Client(t)
	did = nil
	require.NoError(t, readmeClient())
	require.NoError(t, readmeWheel(ctx))
	require.NoError(t, readmeRedislock(ctx, rdb))
	limits, err := ratelimit.New(rdb)
	require.NoError(t, err)
	defer limits.Close(ctx)
	require.NoError(t, readmeRatelimit(ctx, limits))
	semaphores, err := semaphore.New(rdb)
	require.NoError(t, err)
	defer semaphores.Close(ctx)
	require.NoError(t, readmeSemaphore(ctx, semaphores))
	locks, err := redislock.New(rdb)
	require.NoError(t, err)
	defer locks.Close(ctx)
	db := &database{ended: make(chan string, 1)}
	pool := sql.OpenDB(db)
	defer pool.Close()
	require.NoError(t, readmeTransaction(ctx, locks, pool))
	require.Equal(t, "commit", <-db.ended)
	term, end := context.WithCancel(ctx)
	err = readmeLeader(term, locks, func(ctx context.Context) error {
		end()
		return ctx.Err()
	})
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, readmeCheck(ctx, locks, slog.New(slog.DiscardHandler)))
	require.NoError(t, readmeOptions().Close())
	require.Equal(t, []string{"restock", "serve", "serve"}, did)
}

// The lock is lost after the write and before the commit.
func TestREADME_TheTransactionOfALostLockIsRolledBack(t *testing.T) {
	locks, err := redislock.New(redistest.Start(t).Client(t))
	require.NoError(t, err)
	defer locks.Close(context.Background())
	db := &database{ended: make(chan string, 1)}
	db.write = func(ctx context.Context) {
		freed, err := locks.Mutex("ledger").ForceUnlock(context.Background())
		require.NoError(t, err)
		require.True(t, freed)
		<-ctx.Done()
		_ = context.Cause(ctx) // waits until the contexts made from ctx have ended, the transaction's among them
	}
	pool := sql.OpenDB(db)
	defer pool.Close()
	require.ErrorIs(t, readmeTransaction(t.Context(), locks, pool), redislock.ErrLost)
	require.Equal(t, "rollback", <-db.ended) // package sql does it on a goroutine of its own
}

// database is a connector, a driver, a connection and a transaction.
type database struct {
	write func(ctx context.Context) // is called for each statement
	ended chan string               // how a transaction has ended
}

func (d *database) Connect(context.Context) (driver.Conn, error) { return d, nil }
func (d *database) Driver() driver.Driver                        { return d }
func (d *database) Open(string) (driver.Conn, error)             { return d, nil }
func (d *database) Prepare(string) (driver.Stmt, error)          { return nil, errors.ErrUnsupported }
func (d *database) Begin() (driver.Tx, error)                    { return d, nil }
func (d *database) Close() error                                 { return nil }

func (d *database) ExecContext(ctx context.Context, _ string, _ []driver.NamedValue) (driver.Result, error) {
	if d.write != nil {
		d.write(ctx)
	}
	return driver.RowsAffected(1), nil
}

func (d *database) Commit() error {
	d.ended <- "commit"
	return nil
}

func (d *database) Rollback() error {
	d.ended <- "rollback"
	return nil
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

	timeout, err := w.AfterFunc(30*time.Second, func() { fmt.Println("request 7: no answer") })
	if err != nil {
		return err
	}
	// The answer comes. If Stop returns true, the function never runs.
	if timeout.Stop() {
		fmt.Println("request 7: answered")
	}

	left, err := w.Stop(ctx) // at the end of the program: left has the entries that have not fired
	fmt.Println(len(left), "timers were left")
	return err
}

func readmeTransaction(ctx context.Context, locks *redislock.Client, db *sql.DB) error {
	err := locks.Mutex("ledger").Do(ctx, func(ctx context.Context) error { // ctx ends before the lease does
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - 10 WHERE id = 7"); err != nil {
			return err
		}
		return tx.Commit() // if ctx has ended, the transaction is rolled back instead
	})
	return err
}

func readmeRedislock(ctx context.Context, rdb redis.UniversalClient) error {
	locks, err := redislock.New(rdb) // once per process
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second) // Redis may hang
		defer cancel()
		if err := locks.Close(closing); err != nil {
			log.Print(err)
		}
	}()

	stock := locks.Mutex("stock:42", redislock.WithLease(10*time.Second)) // renewed for as long as it is held
	err = stock.Do(ctx, func(ctx context.Context) error {
		return restock(ctx) // no other process holds the lock; ctx ends with the outer ctx, or if the lock is lost
	})
	if errors.Is(err, redislock.ErrLost) {
		log.Print("the lock was lost before restock returned")
	}
	return err
}

func readmeLeader(ctx context.Context, locks *redislock.Client, work func(context.Context) error) error {
	leader := locks.Mutex("orders:leader", redislock.WithLease(10*time.Second))
	err := leader.Lead(ctx, work)
	return err
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
	exports := semaphores.Semaphore("exports", 5, semaphore.WithLease(10*time.Second))
	return exports.Do(ctx, 1, func(ctx context.Context) error {
		return serve(ctx) // at most five in all processes; the context ends with ctx, or if the permit is lost
	})
}

func readmeCheck(ctx context.Context, locks *redislock.Client, logger *slog.Logger) error {
	report, err := locks.Check(ctx, locks.FairMutex("app:jobs"), locks.Mutex("app:stock:42"))
	if err != nil {
		return err // one line that names every failure
	}
	logger.Info("redis checked", "report", report.String())
	return nil
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

func serve(ctx context.Context) error {
	did = append(did, "serve")
	return ctx.Err()
}
