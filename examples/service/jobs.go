package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

const (
	workers        = 4   // goroutines of this process that make reports
	permits        = 2   // reports that are made at a time, by all processes together
	waitingReports = 100 // that this process accepts
)

// jobs is the work of a process that no request waits for.
type jobs struct {
	*clients
	logger  *slog.Logger
	leader  *redislock.Mutex
	permits *semaphore.Semaphore
	reports chan report

	end     context.CancelFunc
	running sync.WaitGroup
}

// report is a request for a report.
type report struct{}

// startJobs starts the workers, and the wait for the leadership.
func startJobs(ctx context.Context, c *clients, logger *slog.Logger) (*jobs, error) {
	j := &jobs{
		clients: c,
		logger:  logger,
		// The status of the lock in Redis shows the metadata. If the leader dies, another process follows
		// within the lease.
		leader: c.locks.Mutex("service:leader", redislock.WithLease(10*time.Second), redislock.WithFencing(),
			redislock.WithMetadata("pid "+strconv.Itoa(os.Getpid()))),
		permits: c.semaphores.Semaphore("service:reports"),
		reports: make(chan report, waitingReports),
	}
	// The first process sets them. To change the number later takes SetPermits.
	if _, err := j.permits.TrySetPermits(ctx, permits); err != nil {
		return nil, err
	}
	ctx, j.end = context.WithCancel(context.WithoutCancel(ctx))
	j.running.Go(func() { j.lead(ctx) })
	for range workers {
		j.running.Go(func() { j.work(ctx) })
	}
	return j, nil
}

// stop ends the work and returns when all of it has ended, or ctx has. Reports that wait are not made.
func (j *jobs) stop(ctx context.Context) error {
	if j == nil {
		return nil
	}
	j.end()
	done := make(chan struct{})
	go func() {
		j.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lead waits until this process is the leader, and is the leader until ctx ends or the lock is lost.
func (j *jobs) lead(ctx context.Context) {
	for ctx.Err() == nil {
		if err := j.leader.Do(ctx, j.closeBooks); ctx.Err() == nil {
			j.logger.Warn("not the leader", "error", err)
			_ = j.wheel.Sleep(ctx, time.Second)
		}
	}
}

// closeBooks is what only the leader does. Its context ends if the lock is lost.
func (j *jobs) closeBooks(ctx context.Context) error {
	j.logger.Info("this process is the leader")
	for {
		if err := j.wheel.Sleep(ctx, 5*time.Second); err != nil {
			return context.Cause(ctx)
		}
		j.logger.Debug("the books are closed")
	}
}

// add reports false if too many reports wait already.
func (j *jobs) add(r report) bool {
	select {
	case j.reports <- r:
		return true
	default:
		return false
	}
}

// work makes reports until ctx ends.
func (j *jobs) work(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-j.reports:
			if err := j.make(ctx, r); err != nil && ctx.Err() == nil {
				j.logger.Warn("no report", "error", err)
			}
		}
	}
}

// make makes a report with one of the permits that all processes share.
func (j *jobs) make(ctx context.Context, _ report) (err error) {
	grant, err := j.permits.Acquire(ctx, 1)
	if errors.Is(err, semaphore.ErrNotSet) { // Redis has lost its data
		if _, err = j.permits.TrySetPermits(ctx, permits); err == nil {
			grant, err = j.permits.Acquire(ctx, 1)
		}
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, grant.Release(ctx)) }()
	return j.wheel.Sleep(grant.Context(ctx), 2*time.Second) // the work; the context ends if the permit is lost
}
