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

// Lead calls work in one process at a time, again and again until ctx ends. The context of work ends when this
// process loses the lead.
func Lead(ctx context.Context, locks *redislock.Client, work func(context.Context) error) error {
	leader := locks.Mutex("orders:leader", redislock.WithLease(10*time.Second))
	for {
		err := leader.Do(ctx, work) // waits until this process leads
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			log.Printf("lead ended: %v", err) // Redis is down, the lock was lost, or work failed
		}
		if err := wheel.Default().Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

// Term waits until this process leads, and calls work once with the lock. The context of work ends when this
// process loses the lead. The error matches redislock.ErrLost if that happened.
func Term(
	ctx context.Context, leader *redislock.Mutex, work func(context.Context, *redislock.Lock) error,
) (err error) {
	l, err := leader.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Unlock(ctx)) }() // sent even if ctx has ended
	return work(l.Context(ctx), l)
}

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
		return rdb.Set(ctx, "job-done:"+id, 1, 24*time.Hour).Err()
	})
}

// Cron runs job at the instants of schedule, in one of all processes that call it. Stop the Timer to end it.
func Cron(
	w *wheel.Wheel, locks *redislock.Client, rdb redis.UniversalClient, name string, schedule wheel.Schedule,
	job func(context.Context) error,
) (wheel.Timer, error) {
	var at time.Time // the instant that comes next: it is the same in every process
	instants := wheel.ScheduleFunc(func(prev time.Time) time.Time {
		at = schedule.Next(prev)
		return at
	})
	return w.Schedule(instants, func() {
		id := name + ":" + at.UTC().Format(time.RFC3339)
		if err := Once(context.Background(), locks, rdb, id, job); err != nil {
			log.Printf("%s: %v", id, err)
		}
	})
}

// Work runs jobs, as many at a time as there are permits for all processes together, until ctx ends or jobs is
// closed. It returns when the jobs that run have ended. A job that found no permit before is given back.
func Work(
	ctx context.Context, exports *semaphore.Semaphore, permits int64,
	jobs <-chan func(context.Context), giveBack func(job func(context.Context)),
) error {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		var job func(context.Context)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case next, open := <-jobs:
			if !open {
				return nil
			}
			job = next
		}
		grant, err := acquire(ctx, exports, permits)
		if err != nil {
			giveBack(job)
			return err
		}
		running.Go(func() {
			defer grant.Release(ctx)                       // sent even if ctx has ended
			job(grant.Context(context.WithoutCancel(ctx))) // ends if the permit is lost, and not with ctx
		})
	}
}

// acquire takes a permit. If none are set, because this process is the first or Redis has lost its data, it sets
// them.
func acquire(ctx context.Context, exports *semaphore.Semaphore, permits int64) (*semaphore.Grant, error) {
	for {
		grant, err := exports.Acquire(ctx, 1)
		if !errors.Is(err, semaphore.ErrNotSet) {
			return grant, err
		}
		if _, err := exports.TrySetPermits(ctx, permits); err != nil {
			return nil, err
		}
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
	exports := semaphores.Semaphore("exports", semaphore.WithLease(10*time.Second))
	worked := Work(ctx, exports, 5, jobs, giveBack) // after this no job runs, so Close cannot take its permit
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return errors.Join(worked, semaphores.Close(closing))
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

// Orders closes orders that are not paid in time. It is safe for concurrent use.
type Orders struct {
	wheel  *wheel.Wheel
	expire func(id string) // closes an order

	mu   sync.Mutex
	open map[string]wheel.Timer
}

// NewOrders returns Orders that calls expire for each order to close.
func NewOrders(w *wheel.Wheel, expire func(id string)) *Orders {
	return &Orders{wheel: w, expire: expire, open: map[string]wheel.Timer{}}
}

// Place begins the time of an order. After a restart, call it for each open order with what is left.
func (o *Orders) Place(id string, left time.Duration) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	timer, err := o.wheel.AfterFunc(left, func() {
		if o.end(id) {
			o.expire(id)
		}
	})
	if err == nil {
		o.open[id] = timer
	}
	return err
}

// Pay reports whether the payment came in time. If it did, the order is not closed.
func (o *Orders) Pay(id string) bool { return o.end(id) }

// end reports whether the order was open until now.
func (o *Orders) end(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	timer, open := o.open[id]
	if open {
		timer.Stop()
		delete(o.open, id)
	}
	return open
}

// ErrStale is returned for a write of a holder that has been superseded.
var ErrStale = errors.New("a later holder has written")

// Write stores value under key if no holder with a higher token has written before. It protects the resource
// from a process that was paused for longer than its lease.
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
