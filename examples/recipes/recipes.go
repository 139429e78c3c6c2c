// Package recipes has short solutions of common tasks, to be copied. docs/recipes.md explains most of them.
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

// Cron runs job at the instants of schedule, in one of all processes that call it, until ctx ends; then it waits for the
// run in progress. The clocks of the processes differ by less than apart, and the instants lie further apart.
func Cron(
	ctx context.Context, w *wheel.Wheel, locks *redislock.Client, name string, schedule wheel.Schedule, apart time.Duration,
	job func(context.Context) error,
) error {
	lock := locks.Mutex("cron:"+name, redislock.WithMinHold(apart))
	if err := lock.Err(); err != nil {
		return err
	}
	running := make(chan struct{}, 1) // full during a run
	timer, err := w.Schedule(schedule, func(at time.Time) {
		running <- struct{}{}
		defer func() { <-running }()
		if ctx.Err() != nil {
			return
		}
		if err := runLocked(ctx, lock, job); err != nil {
			log.Printf("the run of %v: %v", at, err)
		}
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	timer.Stop()          // returns during a run
	running <- struct{}{} // and this does not
	<-running
	return nil
}

// runLocked runs job unless another process runs it, or has just run it.
func runLocked(ctx context.Context, lock *redislock.Mutex, job func(context.Context) error) error {
	l, err := lock.TryLock(ctx)
	if errors.Is(err, redislock.ErrLocked) {
		return nil
	}
	if err != nil {
		return err
	}
	defer l.Unlock(ctx)                               // sent even if ctx has ended
	return job(l.Context(context.WithoutCancel(ctx))) // ends if the lock is lost, and not with ctx
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

// Write stores value under key in Redis, unless a holder with a higher token has written before: then it returns ErrStale. A
// holder may write several times. A Lock without a token is refused too.
func Write(ctx context.Context, rdb redis.UniversalClient, l *redislock.Lock, key, value string) error {
	written, err := fencedSet.Run(ctx, rdb, []string{key}, value, l.Token()).Bool()
	if err == nil && !written {
		return ErrStale
	}
	return err
}

var fencedSet = redis.NewScript(`
	local token, last = tonumber(ARGV[2]), tonumber(redis.call('HGET', KEYS[1], 'token') or 0)
	if token == 0 or token < last then
		return 0
	end
	redis.call('HSET', KEYS[1], 'value', ARGV[1], 'token', ARGV[2])
	return 1`)
