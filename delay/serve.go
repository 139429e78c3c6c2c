package delay

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/clock"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/renewal"
)

const (
	maxClaim   = 500                   // tasks of one call
	prefetch   = 16                    // tasks that are claimed at most for each worker beside the one that it runs
	begunIn    = 10 * time.Millisecond // in which a worker is likely to begin these; another process may be idle
	stuck      = 20 * time.Millisecond // after which they are handed back if no worker begins one
	ahead      = 5 * time.Millisecond  // before its time a task may be claimed; the wheel keeps its time then
	early      = time.Millisecond      // before the next task is due the next call is sent
	collecting = 5 * time.Millisecond  // for which the ends of attempts are collected, or twice this for a claim
	carefully  = 10 * time.Second      // no task is claimed ahead of a worker after one was lost before it had begun
	leaving    = time.Second           // for which Serve waits until it has left the waiting list
)

// errLeaving ends the wait of a Serve that has left nothing behind but its entry in the waiting list.
var errLeaving = errors.New("delay: the waiting list was not left in time")

// server runs the tasks of a queue. It stands as the one waiter in the group of claims.
type server struct {
	queue   *Queue
	workers int
	handle  func(context.Context, *Task) error
	ctx     context.Context //nolint:containedctx // of handlers

	answered bool                // Redis has answered a call; readWork alone uses this, trouble and clock
	trouble  redisconn.Endurance // of calls that fail
	clock    clock.Server

	mu sync.Mutex // guards the fields below
	waiting
	claimed    map[string]*attempt // by the id of the lease, which is renewed until Redis has recorded the end
	ended      int                 // of these, whose ends are to be recorded
	ready      []*attempt          // due, waiting for a worker
	untold     []*attempt          // begun, which Redis does not know yet
	watched    bool                // a timer looks whether they are begun
	running    int                 // workers
	took       time.Duration       // by a handler, a moving average
	notes      []note              // to be recorded
	paused     bool                // the queue, as of the last call
	checked    bool                // a call has found that the keys are of their types
	sent       *claim              // the call that Redis has not answered
	more       bool                // the last call claimed as many tasks as it wanted
	kicks      bool                // a kick is pending
	records    bool                // the next call is to record ends; before claims it claims no tasks
	nextDue    time.Time           // when the next task is due, as far as this process knows
	oldestDue  time.Time           // when the first task that no process has claimed is due, likewise
	answeredAt time.Time           // when the last call that Redis answered ran, at the latest
	careful    time.Time           // until when tasks are claimed for free workers alone
	stopped    bool
	over       bool          // Serve returns; no call follows
	idle       chan struct{} // closed when it is stopped and no worker runs
}

// claim is a call that records ends and claims tasks.
type claim struct {
	number      uint64
	wanted      int
	free        int    // workers; so many of the claimed tasks begin at once
	room        int    // for tasks, also if none are wanted
	process     string // or "" if it cannot be in the waiting list
	probes      bool
	check       bool
	notes       []note
	firstSentAt time.Time // the leases of its tasks count from here: they may have been granted to its first copy
}

// Serve runs tasks that are due until ctx ends: up to workers at a time, 1 to 10 000, in this process. Any number of
// processes may serve a queue. The context of handle ends with ctx, and before the lease of its task can end in
// Redis; then its cause matches ErrLost.
//
// If handle returns nil, the task has ended. After an error of Fail it has failed. After another error or a panic it
// runs again after the backoff of WithRetry, or has failed. If ctx has ended by then, the task is instead handed back
// uncounted, like tasks that were claimed and not begun: they run at once in another process.
//
// Before it returns, Serve waits for the handlers, however long they take, and then at most a lease until Redis has
// recorded the ends of their attempts. It returns
//   - nil, if Redis has recorded them;
//   - context.DeadlineExceeded, if it has not within that lease;
//   - ErrClosed after Client.Close, or if the context of the Close that ended Serve has ended;
//   - ErrServing, or wheel.ErrStopped if the wheel was stopped;
//   - the error of a Redis that refuses this client, as for a missing right, even before ctx has ended.
//
// Match the errors with errors.Is. After an error, tasks that Serve has claimed, and whose ends are not recorded, run
// again when their leases have ended.
//
// Serve goes on through outages, in which it asks again after pauses that grow from 0.1 s to a sixth of the lease, at
// most 5 s. Once Redis has answered it, it endures a refused login for a lease, in which a password may be rotated.
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
	ctx, cancel := context.WithCancel(conventions.EndingWith(ctx, c.ctx))
	defer cancel()
	s := &server{
		queue: q, workers: workers, handle: handle, ctx: ctx,
		claimed: make(map[string]*attempt), idle: make(chan struct{}),
		waiting: waiting{place: unlisted},
	}
	if !c.enterServing(s) {
		return fmt.Errorf("%w: %s", ErrServing, scripts.Quote(q.name))
	}
	defer c.leaveServing(q.tag)
	defer c.goInside(s.tune)
	defer s.end()
	s.mu.Lock()
	s.listenLocked()
	s.mu.Unlock()
	c.longest.Raise(q.config.lease)
	recording, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer giveUp(nil)
	recorded := make(chan error, 1)
	// From here the group alternates buildClaim and readWork. buildClaim grants the wait once the server is stopped
	// and everything is recorded; only an error ends it before.
	c.claims.WaitFunc(recording, q.tag, s, func(_ *server, err error) { recorded <- err })
	var refused error
	select {
	case <-ctx.Done():
	case refused = <-recorded:
		cancel()
	}
	s.stop()
	<-s.idle
	if refused != nil {
		return operationError("serve", q.name, refused)
	}
	return s.awaitRecorded(recording, giveUp, recorded)
}

// awaitRecorded waits until Redis has recorded the ends of the attempts of a server that is stopped, or a lease. It
// gives up by ending recording, and returns the error of Serve.
func (s *server) awaitRecorded(
	recording context.Context, giveUp context.CancelCauseFunc, recorded <-chan error,
) error {
	q, c := s.queue, s.queue.client
	limit, err := wheelentry.AfterFunc(c.wheel, q.config.lease, func(stopped error) {
		if stopped == nil {
			stopped = errUnrecorded
		}
		giveUp(stopped)
	})
	if err != nil {
		giveUp(err)
	}
	defer limit.Stop()
	left, _ := wheelentry.AfterFunc(c.wheel, leaving, func(error) { // limit tells of a wheel that has stopped
		if s.unclaimed() {
			giveUp(errLeaving)
		}
	})
	defer left.Stop()
	switch err := <-recorded; {
	case errors.Is(err, context.Canceled) && errors.Is(context.Cause(recording), errLeaving):
		return nil
	case errors.Is(err, context.Canceled): // it gave up
		if c.ctx.Err() != nil {
			c.unrecorded.Store(true)
		}
		return operationError("serve", q.name, context.Cause(recording))
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

// add begins the attempts that Redis has granted to a call. It hands back those whose lease has ended by now, and all
// if the wheel is stopped, and returns the error.
func (s *server) add(found []*attempt, sentAt time.Time) (refused error) {
	c := s.queue.client
	for _, a := range found {
		var err error
		a.server, a.key = s, strconv.FormatInt(a.Token, 10)+" "+a.ID
		a.lease, err = c.leases.Add(renewal.Spec{
			Key: s.queue.tag, ID: a.key, TTL: s.queue.config.lease, SentAt: sentAt, Lost: ErrLost,
		})
		s.mu.Lock()
		s.claimed[a.key] = a
		next, isLate := c.solo.enter(a)
		c.tell(next)
		if err != nil || s.stopped || isLate {
			s.backLocked(a)
		} else if !a.alone() {
			err = s.beginInTimeLocked(a)
		}
		s.mu.Unlock()
		if err != nil {
			refused = err
		}
	}
	return refused
}

// beginInTimeLocked begins a task when it is due.
func (s *server) beginInTimeLocked(a *attempt) (err error) {
	w := s.queue.client.wheel
	wait := a.due.Sub(w.Now())
	if wait <= 0 {
		s.beginLocked(a)
		return nil
	}
	if a.timer, err = wheelentry.AfterFunc(w, wait, func(stopped error) { s.begin(a, stopped) }); err != nil {
		s.backLocked(a)
	}
	return err
}

// begin begins a task that is due, or hands it back if the wheel was stopped before.
func (s *server) begin(a *attempt, stopped error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case a.ended:
	case s.stopped, stopped != nil:
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
	s.takeLocked(a)
	s.queue.client.gate.Workers.Go(func() { s.work(a) })
}

// takeLocked notes that a worker has taken a task.
func (s *server) takeLocked(a *attempt) {
	if a.began = s.queue.client.wheel.Now(); !a.told {
		s.untold = append(s.untold, a)
	}
}

// backLocked hands back a task that was not begun.
func (s *server) backLocked(a *attempt) {
	e := s.event(a)
	e.Outcome = OutcomeHandedBack
	s.endLocked(a, OutcomeHandedBack, 0)
	s.queue.client.goInside(func() { s.queue.client.monitor.ended(e, false) })
}

// endLocked notes the end of an attempt, which the next call records; until then its lease is renewed. It records no
// loss: Redis counts the end of the lease.
func (s *server) endLocked(a *attempt, outcome Outcome, pause time.Duration) {
	c := s.queue.client
	a.ended = true
	s.ended++
	if outcome == OutcomeLost || s.over {
		s.forgetLocked(a)
	} else {
		s.notes = append(s.notes, note{a, outcome, max(0, pause)})
	}
	next, kick := c.solo.leave(a)
	c.tell(next)
	if kick {
		c.goInside(c.kickAll)
	}
	switch {
	case s.stopped, s.more && 2*s.roomLocked() >= s.capacityLocked():
		c.claims.Kick(s.queue.tag)
	case !s.kicks:
		s.kicks = true
		if _, err := wheelentry.AfterFunc(c.wheel, collecting, s.kick); err != nil {
			s.kicks = false
			c.claims.Kick(s.queue.tag)
		}
	}
}

// forgetLocked ends the lease of an attempt that has ended.
func (s *server) forgetLocked(a *attempt) {
	if s.claimed[a.key] == a {
		delete(s.claimed, a.key)
		s.ended--
	}
	if a.lease != nil {
		a.lease.Close(nil)
	}
}

// end ends all leases. Those of tasks whose ends were not recorded end in Redis.
func (s *server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	for _, a := range s.claimed {
		s.forgetLocked(a)
	}
}

// kick has the next call record ends, or claim tasks if it can. If another call has taken the ends along, it does
// nothing: the group joins kicks, and that of a message must lead to a call.
func (s *server) kick(error) {
	s.mu.Lock()
	now := s.queue.client.wheel.Now()
	s.kicks, s.records = false, len(s.notes) > 0
	calls := s.records || s.roomLocked() > 0 && !s.nextDue.After(now)
	s.mu.Unlock()
	if calls {
		s.queue.client.claims.Kick(s.queue.tag)
	}
}

// capacityLocked returns how many tasks may be claimed: one for each worker, and those that a worker begins soon.
func (s *server) capacityLocked() int {
	if s.took == 0 || s.careful.After(s.queue.client.wheel.Now()) { // no handler has returned, or tasks are being lost
		return s.workers
	}
	return s.workers + int(min(int64(s.workers)*prefetch, int64(s.workers)*int64(begunIn)/int64(s.took)))
}

// overdueLocked returns how long ago the oldest task was due that waits for a worker or is not claimed, or 0.
func (s *server) overdueLocked(now time.Time) time.Duration {
	oldest := s.oldestDue
	if s.place > 1 && oldest.After(s.answeredAt) { // a process before it has claimed that task since, or will
		oldest = now
	}
	if len(s.ready) > 0 && s.ready[0].due.Before(oldest) {
		oldest = s.ready[0].due
	}
	if oldest.IsZero() {
		return 0
	}
	return max(0, now.Sub(oldest))
}

// unclaimed reports whether the server has nothing to record, nor a call that may have claimed tasks.
func (s *server) unclaimed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unclaimedLocked()
}

func (s *server) unclaimedLocked() bool {
	return len(s.claimed) == 0 && (s.sent == nil || s.sent.wanted == 0)
}

// heldLocked returns how many claimed tasks have not ended.
func (s *server) heldLocked() int { return len(s.claimed) - s.ended }

func (s *server) roomLocked() int {
	if s.queue.client.solo.waits() {
		return 0
	}
	return max(0, s.capacityLocked()-s.heldLocked())
}

// watchLocked hands back the tasks that wait for a worker if none becomes free.
func (s *server) watchLocked() {
	if s.watched || len(s.ready) == 0 {
		return
	}
	first := s.ready[0]
	_, err := wheelentry.AfterFunc(s.queue.client.wheel, stuck, func(error) {
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
	for _, a := range s.claimed {
		if a.timer.Stop() || a.alone() && a.began.IsZero() && !a.ended {
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

// next decides on the call to send. There is one if a task is due, which takes the ends along; if ends have waited for
// collecting (kick); after stop; if the process has to leave the waiting list; and if Redis has not answered for
// asking. In the waiting list a task is due for the process when its place says so; see waiting. next returns the call
// to send, or none and the time until the next one, or 0 if that is unknown. over means that everything was recorded
// after stop.
func (s *server) next() (call *claim, again time.Duration, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent != nil {
		return s.sent, 0, false
	}
	now, room := s.queue.client.wheel.Now(), s.roomLocked()
	if s.stopped {
		room = 0
	}
	next := &claim{
		wanted: min(maxClaim, room), free: max(0, s.workers-s.heldLocked()), room: room,
		check: !s.checked, firstSentAt: now,
	}
	until, asks, isListed := s.nextDue.Sub(now), s.asks && room > 0, s.place > 0
	forgotten := isListed && len(s.notes) > 0 && !s.kicks // a notice has put off the claim that was to record them
	records := (s.records || forgotten) && until > 0 && !asks
	s.records, s.asks = false, false
	if records && !s.stopped && until <= collecting {
		return nil, until, false // the claim records the ends
	}
	if records {
		next.wanted = 0
	}
	leaves, polls := isListed && room == 0, s.pollAt.Sub(now)
	if isListed && !leaves && !records && !asks && until > 0 && polls > 0 {
		return nil, min(until, polls), false
	}
	n := min(maxClaim, len(s.notes))
	if next.wanted == 0 && n == 0 && !leaves {
		again = max(0, s.answeredAt.Add(asking).Sub(now))
		if until > 0 {
			again = min(again, until)
		}
		if s.stopped || again > 0 {
			return nil, again, s.stopped && len(s.claimed) == 0
		}
	}
	next.notes, s.notes = append(s.begunLocked(now), s.notes[:n]...), s.notes[n:]
	next.number = s.queue.client.lastNumber.Add(1)
	if s.reached && s.hearsOwn {
		next.process, next.probes, s.probes = s.queue.client.process, s.probes, false
	}
	s.sent = next
	return next, 0, false
}

// begunLocked returns the attempts of which a call tells Redis that they have begun. The others end soon.
func (s *server) begunLocked(now time.Time) (told []note) {
	waiting := s.untold[:0]
	for _, a := range s.untold {
		switch {
		case a.ended:
		case now.Sub(a.began) < collecting:
			waiting = append(waiting, a)
		default:
			a.told = true
			told = append(told, note{a, begun, 0})
		}
	}
	clear(s.untold[len(waiting):])
	s.untold = waiting
	return told
}
