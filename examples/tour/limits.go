package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// limitRequests shows one limit for two processes.
func limitRequests(ctx context.Context, t *tour) (err error) {
	var of [2]*ratelimit.Limiter
	for i := range of {
		rdb := redis.NewClient(t.connect())
		defer rdb.Close()
		c, err := ratelimit.New(rdb, ratelimit.WithWheel(t.wheel))
		if err != nil {
			return err
		}
		defer c.Close(context.WithoutCancel(ctx))
		of[i] = c.Limiter(t.name, ratelimit.PerSecond(5))
	}
	defer func() { err = errors.Join(err, of[0].Reset(context.WithoutCancel(ctx), "user 7")) }()
	for request := range 7 {
		r, err := of[request%2].Allow(ctx, "user 7")
		if err != nil {
			return err
		}
		verdict := "allowed"
		if !r.Allowed {
			verdict = fmt.Sprintf("denied, and would be allowed in %v", r.RetryAfter.Round(time.Millisecond))
		}
		t.out.say("process %d: request %d is %s", request%2+1, request+1, verdict)
	}
	if err := of[0].Wait(ctx, "user 7"); err != nil {
		return err
	}
	t.out.say("process 1: request 8 has waited for its turn")
	return nil
}

// sharePermits runs five jobs of two processes, two at a time.
func sharePermits(ctx context.Context, t *tour) (err error) {
	var of [2]*semaphore.Semaphore
	for i := range of {
		rdb := redis.NewClient(t.connect())
		defer rdb.Close()
		c, err := semaphore.New(rdb, semaphore.WithWheel(t.wheel))
		if err != nil {
			return err
		}
		defer c.Close(context.WithoutCancel(ctx))
		of[i] = c.Semaphore(t.name+":jobs", 2)
	}
	defer func() {
		_, deleted := of[0].Delete(context.WithoutCancel(ctx))
		err = errors.Join(err, deleted)
	}()
	var jobs sync.WaitGroup
	errs := make([]error, 5)
	for job := range errs {
		jobs.Go(func() {
			errs[job] = of[job%2].Do(ctx, 1, func(ctx context.Context) error {
				t.out.say("process %d: job %d begins", job%2+1, job+1)
				defer t.out.say("process %d: job %d ends", job%2+1, job+1)
				return t.wheel.Sleep(ctx, 300*time.Millisecond)
			})
		})
	}
	jobs.Wait()
	return errors.Join(errs...)
}
