// Package recipes has short solutions of common tasks, to be copied. docs/recipes.md explains each.
package recipes

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Once runs job unless a job of that id has succeeded within the last day, in any process. A job that failed,
// or whose process died, runs again.
func Once(
	ctx context.Context, locks *redislock.Client, rdb redis.UniversalClient, id string,
	job func(context.Context) error,
) error {
	return locks.Mutex("job:"+id).Do(ctx, func(ctx context.Context) error {
		done, err := rdb.Exists(ctx, "job-done:"+id).Result()
		if err != nil || done == 1 {
			return err
		}
		if err := job(ctx); err != nil {
			return err
		}
		marking, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second) // ctx may have ended
		defer cancel()
		return rdb.Set(marking, "job-done:"+id, 1, 24*time.Hour).Err()
	})
}

// Cron runs job at the instants of schedule, in one of all processes that call it, until ctx ends; then it waits for the
// run in progress. The clocks of the processes differ by less than apart, and the instants lie further apart.
func Cron(
	ctx context.Context, w *wheel.Wheel, locks *redislock.Client, name string, schedule wheel.Schedule, apart time.Duration,
	job func(context.Context) error,
) error {
	run := locks.Mutex("cron:"+name, redislock.WithMinHold(apart))
	if err := run.Err(); err != nil {
		return err
	}
	return atInstants(ctx, w, schedule, func(time.Time) error {
		l, err := run.TryLock(ctx)
		if errors.Is(err, redislock.ErrLocked) {
			return nil // another process runs it, or has run it
		}
		if err != nil {
			return err
		}
		defer l.Unlock(ctx)                               // sent even if ctx has ended
		return job(l.Context(context.WithoutCancel(ctx))) // ends if the lock is lost, and not with ctx
	})
}

// atInstants calls run at the instants of schedule until ctx ends, and waits for the call in progress.
func atInstants(ctx context.Context, w *wheel.Wheel, schedule wheel.Schedule, run func(at time.Time) error) error {
	running := make(chan struct{}, 1) // full during a call
	timer, err := w.Schedule(schedule, func(at time.Time) {
		running <- struct{}{}
		defer func() { <-running }()
		if ctx.Err() != nil {
			return
		}
		if err := run(at); err != nil {
			log.Printf("the run of %v: %v", at, err)
		}
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	timer.Stop()          // returns during a call
	running <- struct{}{} // and this does not
	<-running
	return nil
}

// CronOnce runs job until it has succeeded once for each instant of schedule. All processes that call it wait for each
// other, and the next one runs what has failed.
func CronOnce(
	ctx context.Context, w *wheel.Wheel, locks *redislock.Client, rdb redis.UniversalClient, name string,
	schedule wheel.Schedule, job func(context.Context) error,
) error {
	return atInstants(ctx, w, schedule, func(at time.Time) error {
		return Once(ctx, locks, rdb, name+":"+at.UTC().Format(time.RFC3339Nano), job)
	})
}

// Work runs jobs, as many at a time as there are permits for all processes together, until ctx ends or jobs is
// closed: then it returns nil, when the jobs that run have ended. A job that found no permit before is given back.
func Work(
	ctx context.Context, w *wheel.Wheel, exports *semaphore.Semaphore,
	jobs <-chan func(context.Context), giveBack func(job func(context.Context)),
) error {
	if err := exports.Err(); err != nil { // a bad name, for example
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	for {
		var job func(context.Context)
		select {
		case <-ctx.Done():
			return nil
		case next, open := <-jobs:
			if !open {
				return nil
			}
			job = next
		}
		grant, err := acquire(ctx, w, exports)
		if err != nil {
			giveBack(job)
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		running.Go(func() {
			defer grant.Release(ctx)                       // sent even if ctx has ended
			job(grant.Context(context.WithoutCancel(ctx))) // ends if the permit is lost, and not with ctx
		})
	}
}

// acquire waits for a permit, also while Redis is down. It fails only if ctx ends or the wheel is stopped.
func acquire(ctx context.Context, w *wheel.Wheel, exports *semaphore.Semaphore) (*semaphore.Grant, error) {
	for {
		grant, err := exports.Acquire(ctx, 1)
		if err == nil {
			return grant, nil
		}
		if ended := w.Sleep(ctx, time.Second); ended != nil {
			return nil, ended
		}
		log.Print("no permit yet: ", err)
	}
}

// Worker works until ctx ends, for example the context of signal.NotifyContext(ctx, syscall.SIGTERM).
func Worker(
	ctx context.Context, rdb redis.UniversalClient,
	jobs <-chan func(context.Context), giveBack func(job func(context.Context)),
) error {
	semaphores, err := semaphore.New(rdb)
	if err != nil {
		return err
	}
	exports := semaphores.Semaphore("exports", 5, semaphore.WithLease(10*time.Second))
	worked := Work(ctx, wheel.Default(), exports, jobs, giveBack) // after this no job runs, so Close cannot take its permit
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return errors.Join(worked, semaphores.Close(closing))
}

// Complete calls a language model for a user, who has a number of tokens and of calls per minute. The call uses most
// tokens at most, and returns how many it has used.
func Complete(
	ctx context.Context, limits *ratelimit.Client, tokens, calls *ratelimit.Limiter, user string, most int64,
	call func(ctx context.Context, most int64) (answer string, used int64, err error),
) (string, error) {
	r, err := limits.All(tokens.Part(user).Cost(most), calls.Part(user)).TryReserve(ctx, 1)
	if err != nil {
		return "", err
	}
	if !r.Allowed {
		return "", fmt.Errorf("too many tokens or calls: try again in %v", r.RetryAfter)
	}
	answer, used, err := call(ctx, most)
	// The tokens, and one call, were used even if ctx has ended.
	if failed := r.Reservation.Settle(context.WithoutCancel(ctx), used, 1); failed != nil {
		log.Printf("the limit of %s counts %d tokens, not %d: %v", user, most, used, failed)
	}
	return answer, err
}

// Mail sends a mail of size kilobytes unless a limit is used up: 10 mails a second for a user, 1000 kB a second
// for the mail service. A denial by one of them takes nothing of the other.
func Mail(
	ctx context.Context, limits *ratelimit.Client, user string, size int64, send func(context.Context) error,
) error {
	perUser := limits.Limiter("user", ratelimit.PerSecond(10))
	perService := limits.Limiter("service", ratelimit.PerSecond(1000))
	r, err := limits.All(perUser.Part(user), perService.Part("mail").Cost(size)).Allow(ctx)
	if err != nil {
		return err
	}
	if !r.Allowed {
		return fmt.Errorf("too much mail: try again in %v", r.RetryAfter)
	}
	return send(ctx)
}

// Enter reports whether a car may enter: the lot has a permit for each space.
func Enter(ctx context.Context, lot *semaphore.CountingSemaphore) (bool, error) {
	err := lot.TryAcquire(ctx, 1)
	if errors.Is(err, semaphore.ErrNoPermits) {
		return false, nil
	}
	return err == nil, err
}

// Leave frees the space of a car, which may have entered through another process.
func Leave(ctx context.Context, lot *semaphore.CountingSemaphore) error { return lot.Release(ctx, 1) }

// Buy sells one item of a stock. It returns semaphore.ErrNoPermits if the stock is sold out.
func Buy(ctx context.Context, stock *semaphore.CountingSemaphore, pay func(context.Context) error) error {
	if err := stock.TryAcquire(ctx, 1); err != nil {
		return err
	}
	if err := pay(ctx); err != nil {
		return errors.Join(err, stock.Release(ctx, 1)) // sent even if ctx has ended
	}
	return nil // an item that was sold is not given back
}

// ErrStale is returned for a write of a holder that has been superseded.
var ErrStale = errors.New("a later holder has written")

// Write stores value under key if no holder with a higher token has written before; a holder may write several
// times. It protects the resource from a process that was paused for longer than its lease.
func Write(ctx context.Context, rdb redis.UniversalClient, l *redislock.Lock, key, value string) error {
	written, err := fencedSet.Run(ctx, rdb, []string{key}, value, l.Token()).Bool()
	if err == nil && !written {
		return ErrStale
	}
	return err
}

var fencedSet = redis.NewScript(`
	if tonumber(redis.call('HGET', KEYS[1], 'token') or 0) > tonumber(ARGV[2]) then
		return 0
	end
	redis.call('HSET', KEYS[1], 'value', ARGV[1], 'token', ARGV[2])
	return 1`)
