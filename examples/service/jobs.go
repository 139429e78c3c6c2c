package main

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

const (
	workers        = 4  // goroutines of this process that make reports
	permits        = 2  // reports that are made at a time, by all processes together
	waitingReports = 10 // that this process accepts: few enough to be made within the grace period
	reportTime     = 2 * time.Second
)

// jobs is the work of a process that no request waits for.
type jobs struct {
	*clients
	logger  *slog.Logger
	permits *semaphore.Semaphore

	resign  context.CancelFunc // ends the leadership
	giveUp  context.CancelFunc // ends the reports
	running sync.WaitGroup

	mu       sync.Mutex // guards what follows
	accepted int
	stopping bool
	reports  chan report // closed by stop
}

// report is a request for a report.
type report struct{ id int }

// startJobs starts the workers, and the wait for the leadership.
func startJobs(ctx context.Context, c *clients, logger *slog.Logger) *jobs {
	j := &jobs{
		clients: c,
		logger:  logger,
		// The first call sets the number. To change it later takes SetPermits.
		permits: c.semaphores.Semaphore("service:reports", permits),
		reports: make(chan report, waitingReports),
	}
	ctx = context.WithoutCancel(ctx)
	leading, resign := context.WithCancel(ctx)
	working, giveUp := context.WithCancel(ctx)
	j.resign, j.giveUp = resign, giveUp
	j.running.Go(func() { j.lead(leading) })
	for range workers {
		j.running.Go(func() { j.work(working) })
	}
	return j
}

// stop accepts no more reports and returns when all that were accepted are made. Those that are not when working
// ends are given up. It returns when ctx ends at the latest.
func (j *jobs) stop(ctx, working context.Context) error {
	if j == nil {
		return nil
	}
	j.resign()
	j.mu.Lock()
	if !j.stopping {
		j.stopping = true
		close(j.reports)
	}
	j.mu.Unlock()
	defer context.AfterFunc(working, j.giveUp)()
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

// lead waits until this process is the leader, and is the leader until ctx ends or the lock is lost. The status
// of the lock in Redis shows the metadata. If the leader dies, another process follows within the lease.
func (j *jobs) lead(ctx context.Context) {
	leader := j.locks.Mutex("service:leader", redislock.WithLease(10*time.Second),
		redislock.WithFencing(), redislock.WithMetadata("pid "+strconv.Itoa(os.Getpid())))
	err := leader.Lead(ctx, j.closeBooks)
	if ctx.Err() == nil {
		j.logger.Error("not the leader", "error", err)
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

// add accepts a report. It reports false if too many wait already, or the process stops.
func (j *jobs) add() (r report, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r.id = j.accepted + 1
	if j.stopping {
		return r, false
	}
	select {
	case j.reports <- r:
		j.accepted++
		return r, true
	default:
		return r, false
	}
}

// work makes the accepted reports until stop. A report that fails, as while Redis is down, is tried again until
// ctx ends.
func (j *jobs) work(ctx context.Context) {
	for r := range j.reports {
		for {
			err := j.make(ctx)
			if err == nil {
				j.logger.Info("report made", "report", r.id)
				break
			}
			if j.wheel.Sleep(ctx, time.Second) != nil {
				j.logger.Error("report lost", "report", r.id, "error", err)
				break
			}
			j.logger.Warn("report failed", "report", r.id, "error", err)
		}
	}
}

// make makes a report with one of the permits that all processes share.
func (j *jobs) make(ctx context.Context) error {
	return j.permits.Do(ctx, 1, func(ctx context.Context) error {
		return j.wheel.Sleep(ctx, reportTime) // the work; the context ends if the permit is lost
	})
}
