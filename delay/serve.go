package delay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/contexts"
	"github.com/cogwheel-go/cogwheel/internal/highest"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/renewal"
)

const (
	maxClaim    = 500                   // tasks of one call
	maxEndBytes = 4 << 20               // payloads of the tasks whose ends a call records, or one of them
	prefetch    = 16                    // tasks that are claimed at most for each worker beside the one that it runs
	begunIn     = 10 * time.Millisecond // in which a worker is likely to begin these; another process may be idle
	stuck       = 20 * time.Millisecond // after which they are handed back if no worker begins one
	ahead       = 5 * time.Millisecond  // before its time a task may be claimed; the wheel keeps its time then
	early       = time.Millisecond      // before the next task is due the next call is sent
	collecting  = 5 * time.Millisecond  // for which the ends of attempts are collected, or twice this for a claim
)

// server runs the tasks of a queue. It stands as the one waiter in the group of claims.
type server struct {
	queue   *Queue
	workers int
	handle  func(context.Context, *Task) error
	ctx     context.Context //nolint:containedctx // of handlers

	begun   bool                // Redis has answered a call; of the attempts of the group, as trouble is
	trouble redisconn.Endurance // of calls that fail

	mu      sync.Mutex // guards the fields below
	claimed map[*attempt]struct{}
	ready   []*attempt    // due, waiting for a worker
	watched bool          // a timer looks whether they are begun
	running int           // workers
	took    time.Duration // by a handler, a moving average
	ends    []ending      // to be recorded
	sent    *claim        // the call that Redis has not answered
	more    bool          // the last call claimed as many tasks as it wanted
	kicks   bool          // a kick is pending
	records bool          // the next call is to record ends; before claims it claims no tasks
	claims  time.Time     // when the next task is due, as far as this process knows
	paused  time.Time     // until when no tasks are claimed, because the wheel was full
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
// If handle returns nil, the task has ended. After an error or a panic it runs again after the backoff of WithRetry,
// or has failed. If ctx has ended by then, the task is handed back uncounted, like tasks that were claimed and not
// begun: they run at once in another process. Serve returns when the handlers have returned and Redis has recorded
// that, or a lease later. It returns nil if Redis has. Otherwise its error matches context.DeadlineExceeded, ErrClosed
// if the context of Close has ended, wheel.ErrStopped or ErrServing, or is that of a Redis that refuses this client, as
// for a missing right; then the tasks that it has claimed, and whose ends are not recorded, run again when their leases
// have ended.
//
// Serve goes on through outages, in which it asks again after pauses that grow from 0.1 s to a sixth of the lease, at
// most 5 s. Once Redis has answered it, it endures a refused login for a lease, in which a password may be rotated.
//
// A full wheel has no room for leases. While it is full, Serve hands back what it claims, and waits 100 to 500 ms
// before the next claim. Stats.Err is wheel.ErrTooManyPending then.
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
	case !c.servers.Enter():
		return ErrClosed
	}
	defer c.servers.Leave()
	ctx, end := context.WithCancel(contexts.EndingWith(ctx, c.ctx))
	defer end()
	s := &server{
		queue: q, workers: workers, handle: handle, ctx: ctx,
		claimed: make(map[*attempt]struct{}), idle: make(chan struct{}),
	}
	if !c.enterServing(s) {
		return fmt.Errorf("%w: %s", ErrServing, scripts.Quote(q.name))
	}
	defer c.leaveServing(q.tag)
	highest.Raise(&c.longest, int64(q.config.lease))
	recording, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	recorded := make(chan error, 1)
	c.claims.WaitFunc(recording, q.tag, s, func(_ *server, err error) { recorded <- err })
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
	unrecorded := errUnrecorded
	stop, err := wheelentry.AfterFuncAnyway(c.wheel, q.config.lease, func(error) { giveUp() })
	if err != nil {
		unrecorded = err
		giveUp()
	}
	defer stop()
	switch err := <-recorded; {
	case errors.Is(err, context.Canceled): // it gave up
		if c.ctx.Err() != nil {
			c.unrecorded.Store(true)
		}
		return operationError("serve", q.name, unrecorded)
	case err != nil:
		return operationError("serve", q.name, err)
	default:
		return nil
	}
}

func (c *Client) enterServing(s *server) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.serving[s.queue.tag] != nil {
		return false
	}
	c.serving[s.queue.tag] = s
	return true
}

func (c *Client) leaveServing(tag string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.serving, tag)
}

// add begins the attempts that Redis has granted to a call. waits are how long before its time each was claimed. It
// hands back those for which a stopped or full wheel has no room, and returns the error of the wheel.
func (s *server) add(found []*attempt, waits []time.Duration, began time.Time) (refused error) {
	c := s.queue.client
	now := c.wheel.Now()
	for i, a := range found {
		var err error
		a.due = now.Add(waits[i])
		a.lease, err = c.leases.Add(renewal.Spec{
			Key: s.queue.tag, ID: strconv.FormatInt(a.Token, 10) + " " + a.ID, TTL: s.queue.config.lease,
			SentAt: began, Lost: ErrLost,
		})
		s.mu.Lock()
		s.claimed[a] = struct{}{}
		switch {
		case err != nil || s.stopped:
			s.backLocked(a)
		case waits[i] <= 0:
			s.beginLocked(a)
		default:
			if a.timer, err = c.wheel.AfterFunc(waits[i], func() { s.begin(a) }); err != nil {
				s.backLocked(a)
			}
		}
		s.mu.Unlock()
		if err != nil {
			refused = err
		}
	}
	return refused
}

func (s *server) begin(a *attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch _, held := s.claimed[a]; {
	case !held:
	case s.stopped: // meanwhile
		s.backLocked(a)
	default:
		s.beginLocked(a)
	}
}

// beginLocked gives a task that is due to a worker.
func (s *server) beginLocked(a *attempt) {
	if s.running == s.workers {
		s.ready = append(s.ready, a)
		s.watchLocked()
		return
	}
	s.running++
	s.queue.client.gate.Workers.Go(func() { s.work(a) })
}

// backLocked hands back a task that was not begun.
func (s *server) backLocked(a *attempt) {
	e := s.event(a)
	e.Outcome = HandedBack
	s.endLocked(a, HandedBack, a.due.Sub(s.queue.client.wheel.Now()))
	c := s.queue.client
	c.gate.EnterInside()
	c.gate.Workers.Go(func() {
		defer c.gate.Leave()
		c.monitor.ended(e, false)
	})
}

// endLocked notes the end of an attempt, which the next call records. It records no loss: Redis counts the end of the
// lease.
func (s *server) endLocked(a *attempt, outcome Outcome, pause time.Duration) {
	delete(s.claimed, a)
	if a.lease != nil {
		a.lease.Close(nil)
	}
	if outcome != Lost {
		s.ends = append(s.ends, ending{a.ID, a.Token, outcome, max(0, pause), len(a.Payload)})
	}
	c := s.queue.client
	switch {
	case s.stopped, s.more && 2*s.roomLocked() >= s.capacityLocked():
		c.claims.Kick(s.queue.tag)
	case !s.kicks:
		s.kicks = true
		if _, err := wheelentry.AfterFuncAnyway(c.wheel, collecting, s.kick); err != nil {
			s.kicks = false
			c.claims.Kick(s.queue.tag)
		}
	}
}

// kick has the next call record ends. If another call has taken them along, it does nothing: the group joins kicks, and
// that of a message must lead to a call.
func (s *server) kick(error) {
	s.mu.Lock()
	s.kicks, s.records = false, len(s.ends) > 0
	records := s.records
	s.mu.Unlock()
	if records {
		s.queue.client.claims.Kick(s.queue.tag)
	}
}

// capacityLocked returns how many tasks may be claimed: one for each worker, and those that a worker begins soon.
func (s *server) capacityLocked() int {
	if s.took == 0 { // no handler has returned
		return s.workers
	}
	return s.workers + int(min(int64(s.workers)*prefetch, int64(s.workers)*int64(begunIn)/int64(s.took)))
}

func (s *server) roomLocked() int { return max(0, s.capacityLocked()-len(s.claimed)) }

// watchLocked hands back the tasks that wait for a worker if none becomes free.
func (s *server) watchLocked() {
	if s.watched || len(s.ready) == 0 {
		return
	}
	first := s.ready[0]
	_, err := wheelentry.AfterFuncAnyway(s.queue.client.wheel, stuck, func(error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.watched = false
		if len(s.ready) > 0 && s.ready[0] == first {
			s.took = max(s.took, time.Duration(s.workers+1)*begunIn) // so that none are claimed ahead
			waiting := s.ready
			s.ready = nil
			for _, a := range waiting {
				s.backLocked(a)
			}
		}
		s.watchLocked()
	})
	s.watched = err == nil
}

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
		s.backLocked(a)
	}
	if s.running == 0 {
		close(s.idle)
	}
	s.queue.client.claims.Kick(s.queue.tag)
}

// next returns the call to send, or none and the time until the next one, or 0 if that is unknown. over means that
// everything was recorded after stop.
func (s *server) next() (call *claim, again time.Duration, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent != nil {
		return s.sent, 0, false
	}
	next := &claim{wanted: min(maxClaim, s.roomLocked()), began: s.queue.client.wheel.Now()}
	pause := s.paused.Sub(next.began)
	until := max(pause, s.claims.Sub(next.began))
	records := s.records && until > 0
	s.records = false
	if records && !s.stopped && until <= collecting {
		return nil, until, false // the claim records the ends
	}
	if records || s.stopped || pause > 0 {
		next.wanted = 0
	}
	n, size := 0, 0
	for n < min(maxClaim, len(s.ends)) && (n == 0 || size+s.ends[n].size <= maxEndBytes) {
		size += s.ends[n].size
		n++
	}
	next.ends, s.ends = slices.Clone(s.ends[:n]), s.ends[n:]
	if next.wanted == 0 && n == 0 {
		if pause <= 0 {
			pause = max(0, s.claims.Sub(next.began))
		}
		return nil, pause, s.stopped && len(s.claimed) == 0
	}
	next.number = s.queue.client.lastNumber.Add(1)
	s.sent = next
	return next, 0, false
}
