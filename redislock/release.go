package redislock

import (
	"container/heap"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/joined"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	// lateCopy is when a release is repeated for the first time because an unanswered request may take effect after it: by then the server,
	// which has answered since, has read what was in its sockets. A copy may be later still, held up by the network, so the
	// pause before each further release is twice as long as the one before.
	lateCopy = time.Second

	// latest is how long an unanswered request is reckoned with at least.
	latest = 15 * time.Second

	releaseRetry   = 250 * time.Millisecond // the pause after the first failure; doubled up to maxReleaseWait
	maxReleaseWait = 5 * time.Second
	releaseTimeout = 5 * time.Second // of one batch
	releaseBatch   = 100
	closeTries     = 3 // of Close
)

// claim is what may be left of a lock in Redis.
type claim struct {
	*request
	leave bool      // it may still wait
	until time.Time // by then it has gone by itself
	due   time.Time
	pause time.Duration // before the next retry
	copy  time.Duration // before the release that follows one that succeeds; 0: none follows
}

// call is what takes it away.
func (cl claim) call() call {
	if cl.leave {
		return cl.kind().leave(cl.request)
	}
	return cl.kind().release(cl.request)
}

// claim counts its time from now: any request for it was sent before.
func (l *Lock) claim() claim {
	return claim{request: &l.request, until: time.Now().Add(max(l.ttl(), time.Duration(l.longest.Load()))), pause: releaseRetry}
}

// again has the release repeated, because a request for the lock may still be under way.
func (cl claim) again() claim {
	cl.copy = lateCopy
	if least := time.Now().Add(latest); cl.until.Before(least) {
		cl.until = least
	}
	return cl
}

// abandon is for a request that is given up: nobody holds it, and the server may remember it. A place in a line outlives a short lease.
func (c *Client) abandon(req *request, again bool) {
	cl := (&Lock{request: *req}).claim()
	if req.kind().leave != nil {
		cl.leave = true
		if gone := time.Now().Add(c.fairAlive()); cl.until.Before(gone) {
			cl.until = gone
		}
	}
	c.giveBack(cl, again)
}

// giveBack releases, in the background, a lock that nobody holds; again says that a request for it may still be under way.
func (c *Client) giveBack(cl claim, again bool) {
	if again {
		cl = cl.again()
	}
	c.late.add(cl, 0)
}

// claims is a heap of what is to be released, the first that is due on top: after an outage there may be as many as there were locks.
type claims []claim

func (c *claims) Len() int           { return len(*c) }
func (c *claims) Less(i, j int) bool { return (*c)[i].due.Before((*c)[j].due) }
func (c *claims) Swap(i, j int)      { (*c)[i], (*c)[j] = (*c)[j], (*c)[i] }
func (c *claims) Push(x any)         { *c = append(*c, x.(claim)) }
func (c *claims) Pop() any {
	last := len(*c) - 1
	cl := (*c)[last]
	(*c)[last] = claim{}
	*c = (*c)[:last]
	return cl
}

// releaser sends releases that nobody waits for, in batches, one batch at a time, and retries those that fail.
//
// Ground rules. mu guards every field. At most one wheel entry and one goroutine exist, and neither when nothing is pending. Unless it is
// running or closed, the entry is for the first claim on the heap.
type releaser struct {
	client *Client

	mu      sync.Mutex
	pending claims
	timer   wheel.Timer
	running bool
	closed  bool
}

// add queues a release for in d from now.
func (r *releaser) add(cl claim, d time.Duration) {
	cl.due = time.Now().Add(d)
	r.mu.Lock()
	defer r.mu.Unlock()
	first := len(r.pending) == 0 || cl.due.Before(r.pending[0].due)
	heap.Push(&r.pending, cl)
	if !r.running && (first || !r.timer.Pending()) { // it is not pending where the wheel had no room for it
		r.arm()
	}
}

// arm schedules the next batch; mu is held.
func (r *releaser) arm() {
	if len(r.pending) == 0 || r.closed {
		return
	}
	r.timer.Stop()
	// Without a wheel the keys end with their lease; with a full one they wait for the next release.
	r.timer, _ = r.client.wheel.AfterFunc(time.Until(r.pending[0].due), r.fire)
}

func (r *releaser) fire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running || !r.client.gate.Enter() {
		return
	}
	r.running = true
	go func() {
		defer r.client.gate.Leave()
		r.work()
	}()
}

// work sends what is due until nothing is.
func (r *releaser) work() {
	for {
		r.mu.Lock()
		batch := r.take(time.Now())
		if len(batch) == 0 {
			r.running = false
			r.arm()
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()

		ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
		again, _ := r.send(ctx, batch)
		cancel()

		r.mu.Lock()
		for _, cl := range again {
			heap.Push(&r.pending, cl)
		}
		r.mu.Unlock()
	}
}

// take removes up to a batch of claims that are due, less those whose time is over; mu is held.
func (r *releaser) take(now time.Time) (batch []claim) {
	for len(r.pending) > 0 && len(batch) < releaseBatch && !r.pending[0].due.After(now) {
		if cl := heap.Pop(&r.pending).(claim); !now.After(cl.until) {
			batch = append(batch, cl)
		}
	}
	return batch
}

// send releases a batch and returns what has to be sent once more, and the failures.
func (r *releaser) send(ctx context.Context, batch []claim) (again []claim, err error) {
	now := time.Now()
	for i, cmd := range r.client.runBatch(ctx, batch) {
		cl, failure := batch[i], cmd.Err()
		switch {
		case failure != nil && calls.Refused(failure) && !calls.Passing(failure):
			r.client.logger.LogAttrs(ctx, slog.LevelWarn, "release refused, the lock ends with its lease",
				slog.String("name", cl.name()), slog.Any("error", failure))
		case failure != nil:
			err = failure
			cl.due, cl.pause = now.Add(cl.pause), min(2*cl.pause, maxReleaseWait)
			again = append(again, cl)
			if !calls.Refused(failure) {
				r.client.own.Reload()
			}
		case cl.copy > 0:
			cl.due, cl.copy = now.Add(cl.copy), 2*cl.copy
			again = append(again, cl)
		}
	}
	return again, err
}

// runBatch sends the claims in one pipeline for each script among them.
func (c *Client) runBatch(ctx context.Context, batch []claim) []*redis.Cmd {
	type group struct {
		calls   []scripts.Call
		indexes []int
	}
	groups := make(map[*scripts.Script]*group, 1)
	for i, cl := range batch {
		what := cl.call()
		g := groups[what.script]
		if g == nil {
			g = &group{}
			groups[what.script] = g
		}
		g.calls = append(g.calls, scripts.Call{Keys: what.keys, Args: what.args})
		g.indexes = append(g.indexes, i)
	}
	cmds := make([]*redis.Cmd, len(batch))
	c.own.Follow(ctx, DefaultLease)
	for script, g := range groups {
		for i, cmd := range c.own.RunBatch(ctx, script, g.calls) {
			cmds[g.indexes[i]] = cmd
		}
	}
	return cmds
}

// close sends everything that is pending, due or not, and drops what fails. The gate is closed and idle.
func (r *releaser) close(ctx context.Context) error {
	r.mu.Lock()
	r.closed = true
	r.timer.Stop()
	pending := r.pending
	r.pending = nil
	r.mu.Unlock()
	var errs []error
	left := 0
	for batch := range slices.Chunk(pending, releaseBatch) {
		now := time.Now()
		batch = slices.DeleteFunc(batch, func(cl claim) bool { return now.After(cl.until) })
		if len(batch) == 0 {
			continue
		}
		failed, err := r.sendLast(ctx, batch)
		left += failed
		errs = append(errs, err)
	}
	if left > 0 {
		return fmt.Errorf("%d locks could not be released and end with their lease: %w", left, joined.Errors(errs...))
	}
	return nil
}

// sendLast releases a batch, trying again in case the node has just been replaced, and returns how many failed.
func (r *releaser) sendLast(ctx context.Context, batch []claim) (failed int, err error) {
	for n := range closeTries {
		if n > 0 && r.client.wheel.Sleep(ctx, releaseRetry) != nil {
			break
		}
		if ctx.Err() != nil {
			return len(batch), ctx.Err()
		}
		bounded, cancel := context.WithTimeout(ctx, releaseTimeout)
		batch, err = r.send(bounded, batch)
		cancel()
		if err == nil {
			return 0, nil
		}
	}
	return len(batch), joined.Errors(err, overdue(ctx))
}

// overdue is ctx's error, also in the instant between its deadline and the news of it: a connection that has the same
// deadline may be first to report.
func overdue(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && ctx.Err() == nil && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}
