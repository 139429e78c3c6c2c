package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// lease is how long Redis keeps the lock of a dead holder. The default of the library is 30 s, too long for a
// demonstration.
const lease = 3 * time.Second

// The reports of a worker. It prints its number and the report, one per line, to standard output.
const (
	waits    = "waits"
	holds    = "holds"
	renewed  = "renewed"
	releases = "releases"
	failed   = "failed"
)

// runWorker is the main function of a worker process. It waits for the lock, works while it holds the lock,
// and releases it. It also returns when its standard input is closed, so that no worker outlives the tour.
func runWorker(ctx context.Context, number, lockName, workTime string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()

	report := func(what string) { fmt.Println(number, what) }
	err := waitAndWork(ctx, lockName, workTime, report)
	if err == nil || ctx.Err() != nil {
		return nil
	}
	report(failed)
	return fmt.Errorf("worker %s: %w", number, err)
}

func waitAndWork(ctx context.Context, lockName, workTime string, report func(string)) error {
	d, err := time.ParseDuration(workTime)
	if err != nil {
		return err
	}
	opts, err := redisOptions(os.Getenv("REDIS_ADDR"))
	if err != nil {
		return err
	}
	rdb := redis.NewClient(opts)
	defer rdb.Close()
	locks, err := redislock.New(rdb)
	if err != nil {
		return err
	}
	defer locks.Close(context.WithoutCancel(ctx))

	report(waits)
	lock, err := locks.Mutex(lockName, redislock.WithLease(lease)).Lock(ctx)
	if err != nil {
		return err
	}
	report(holds)
	err = work(lock.Context(ctx), lock, d, report)
	report(releases)
	return errors.Join(err, lock.Unlock(ctx))
}

// work reports each renewal of the lock until d has passed. ctx ends if the lock is lost.
func work(ctx context.Context, lock *redislock.Lock, d time.Duration, report func(string)) error {
	leaseEnd := lock.Deadline()
	for done := time.Now().Add(d); time.Now().Before(done); {
		if err := wheel.Default().Sleep(ctx, 10*time.Millisecond); err != nil {
			return context.Cause(ctx)
		}
		if lock.Deadline().After(leaseEnd) {
			leaseEnd = lock.Deadline()
			report(renewed)
		}
	}
	return nil
}
