package delay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/contexts"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	prefetch   = 4                    // tasks that are claimed for each worker beside the one that it runs
	maxClaim   = 500                  // tasks of one call
	ahead      = 5 * time.Millisecond // before its time a task may be claimed; the wheel keeps its time then
	collecting = 5 * time.Millisecond // for which the ends of attempts are collected
)

// Task is a task of a handler.
type Task struct {
	ID      string
	Payload []byte

	// Token rises with each attempt of an id. Store it with the effect of the task, and refuse lower ones.
	Token int64

	Failures int // attempts that returned an error or panicked
	Losses   int // attempts whose lease was lost
}

// attempt is a claimed task until its end is recorded.
type attempt struct {
	Task
	lease *renewal.Lease
	timer wheel.Timer // until the task is due
}

// ending is the end of an attempt, as the script takes it.
type ending struct {
	how, id string
	token   int64
	pause   time.Duration
}

// server runs the tasks of a queue. It stands as the one waiter in the group of claims.
type server struct {
	queue   *Queue
	workers int
	handle  func(context.Context, *Task) error
	ctx     context.Context //nolint:containedctx // of handlers

	mu      sync.Mutex // guards the fields below
	claimed map[*attempt]struct{}
	ready   []*attempt // due, waiting for a worker
	running int        // workers
	ends    []ending   // to be recorded
	sent    *claim     // the call that Redis has not answered
	more    bool       // the last call claimed as many tasks as it wanted
	kicks   bool       // a kick is pending
	stopped bool
	idle    chan struct{} // closed when it is stopped and no worker runs
}

// claim is a call that records ends and claims tasks.
type claim struct {
	number uint64
	wanted int
	ends   []ending
	began  time.Time
}

// Serve runs tasks that are due until ctx ends: up to workers at a time, 1 to 10 000, in this process. Any number of
// processes may serve a queue. The context of handle ends with ctx, and before the lease of its task can end in Redis;
// then its cause matches ErrLost.
//
// If handle returns nil, the task has ended. After an error or a panic it runs again after the backoff of WithRetry, or
// has failed. If ctx has ended by then, the task is handed back uncounted, like tasks that were claimed and not begun:
// they run at once in another process. Serve returns when the handlers have returned and Redis has recorded that, or a
// lease later. It returns nil, the error of a Redis that refuses this client, or ErrServing.
func (q *Queue) Serve(ctx context.Context, workers int, handle func(context.Context, *Task) error) error {
	c := q.client
	switch {
	case q.err != nil:
		return q.err
	case ctx == nil:
		return argument.Nil("context")
	case workers < 1 || workers > 10_000:
		return argument.Error("workers", workers, "must be 1 to 10000")
	case handle == nil:
		return argument.Nil("handler")
	case !c.gate.Enter():
		return ErrClosed
	}
	defer c.gate.Leave()
	if !c.enterServing(q.name) {
		return fmt.Errorf("%w: %s", ErrServing, scripts.Quote(q.name))
	}
	defer c.leaveServing(q.name)
	ctx, end := context.WithCancel(contexts.EndingWith(ctx, c.ctx))
	defer end()
	s := &server{
		queue: q, workers: workers, handle: handle, ctx: ctx,
		claimed: make(map[*attempt]struct{}), idle: make(chan struct{}),
	}
	recording, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	recorded := make(chan error, 1)
	c.claims.WaitFunc(recording, q.name, s, func(_ *server, err error) { recorded <- err })
	var refused error
	select {
	case <-ctx.Done():
	case refused = <-recorded:
		end()
	}
	s.stop()
	<-s.idle
	if refused != nil {
		return operationError("serve", q.name, refused)
	}
	timer, err := c.wheel.AfterFunc(q.config.lease, giveUp)
	if err != nil {
		giveUp()
	}
	defer timer.Stop()
	if err := <-recorded; err != nil && !errors.Is(err, context.Canceled) {
		return operationError("serve", q.name, err)
	}
	return nil
}

func (c *Client) enterServing(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.serving[name] {
		return false
	}
	c.serving[name] = true
	return true
}

func (c *Client) leaveServing(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.serving, name)
}

// add begins the attempts that Redis has granted to a call. wait is how long before its time each was claimed.
func (s *server) add(found []*attempt, waits []time.Duration, began time.Time) {
	c := s.queue.client
	for i, a := range found {
		var err error
		a.lease, err = c.leases.Add(renewal.Spec{
			Key: s.queue.name, ID: strconv.FormatInt(a.Token, 10) + " " + a.ID, TTL: s.queue.config.lease,
			SentAt: began, Lost: ErrLost,
		})
		s.mu.Lock()
		s.claimed[a] = struct{}{}
		switch {
		case err != nil || s.stopped:
			s.endLocked(a, "back", 0)
		case waits[i] <= 0:
			s.beginLocked(a)
		default:
			if a.timer, err = c.wheel.AfterFunc(waits[i], func() { s.begin(a) }); err != nil {
				s.endLocked(a, "back", 0)
			}
		}
		s.mu.Unlock()
	}
}

func (s *server) begin(a *attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, held := s.claimed[a]; held {
		s.beginLocked(a)
	}
}

// beginLocked gives a task that is due to a worker.
func (s *server) beginLocked(a *attempt) {
	if s.running == s.workers {
		s.ready = append(s.ready, a)
		return
	}
	s.running++
	s.queue.client.gate.Workers.Go(func() { s.work(a) })
}

// work runs tasks while there are any.
func (s *server) work(a *attempt) {
	for a != nil {
		how, pause := "done", time.Duration(0)
		err := s.run(a)
		switch config := &s.queue.config; {
		case err == nil:
		case s.ctx.Err() != nil:
			how = "back"
		case a.Failures+1 >= config.attempts:
			how = "failed"
		default:
			how, pause = "again", config.backoff(a.Failures+1)
		}
		s.mu.Lock()
		s.endLocked(a, how, pause)
		if a = nil; len(s.ready) > 0 {
			a, s.ready = s.ready[0], s.ready[1:]
		} else if s.running--; s.stopped && s.running == 0 {
			close(s.idle)
		}
		s.mu.Unlock()
	}
}

// run calls the handler.
func (s *server) run(a *attempt) (err error) {
	returned := false
	defer func() {
		if r := recover(); r != nil || !returned {
			err = fmt.Errorf("delay: the handler of %s panicked: %v", scripts.Quote(a.ID), r)
			s.queue.client.logger.Error("delay: a handler panicked",
				slog.String("queue", s.queue.name), slog.Any("panic", r), slog.String("stack", string(debug.Stack())))
		}
	}()
	err = s.handle(a.lease.Context(s.ctx), &a.Task)
	returned = true
	return err
}

// endLocked notes the end of an attempt, which the next call records.
func (s *server) endLocked(a *attempt, how string, pause time.Duration) {
	delete(s.claimed, a)
	if a.lease != nil {
		a.lease.Close(nil)
	}
	s.ends = append(s.ends, ending{how, a.ID, a.Token, max(0, pause)})
	c := s.queue.client
	switch {
	case s.stopped, s.more && 2*s.roomLocked() >= s.capacity():
		c.claims.Kick(s.queue.name)
	case !s.kicks:
		s.kicks = true
		if _, err := c.wheel.AfterFunc(collecting, s.kick); err != nil {
			s.kicks = false
			c.claims.Kick(s.queue.name)
		}
	}
}

func (s *server) kick() {
	s.mu.Lock()
	s.kicks = false
	s.mu.Unlock()
	s.queue.client.claims.Kick(s.queue.name)
}

func (s *server) capacity() int { return s.workers * (1 + prefetch) }

func (s *server) roomLocked() int { return max(0, s.capacity()-len(s.claimed)) }

// stop hands back the tasks that were not begun.
func (s *server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	waiting := s.ready
	for a := range s.claimed {
		if a.timer.Stop() {
			waiting = append(waiting, a)
		}
	}
	s.ready = nil
	for _, a := range waiting {
		s.endLocked(a, "back", 0)
	}
	if s.running == 0 {
		close(s.idle)
	}
	s.queue.client.claims.Kick(s.queue.name)
}

// next returns the call to send, or none. over means that everything was recorded after stop.
func (s *server) next() (call *claim, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent != nil {
		return s.sent, false
	}
	next := &claim{wanted: min(maxClaim, s.roomLocked()), began: s.queue.client.wheel.Now()}
	if s.stopped {
		next.wanted = 0
	}
	n := min(maxClaim, len(s.ends))
	next.ends, s.ends = slices.Clone(s.ends[:n]), s.ends[n:]
	if next.wanted == 0 && n == 0 {
		return nil, s.stopped && len(s.claimed) == 0
	}
	next.number = s.queue.client.lastNumber.Add(1)
	s.sent = next
	return next, false
}
