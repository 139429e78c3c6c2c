package delay

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/usercode"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Task is a task of a handler. Queue.State has the Attempts that it was scheduled with.
type Task struct {
	ID      string
	Payload []byte

	// Token rises with each attempt of an id. Store it with the effect of the task, and refuse lower ones.
	Token int64

	Failures int // attempts that returned an error or panicked
	Losses   int // attempts that had begun when their lease was lost
}

// attempt is a claimed task until its end is recorded.
type attempt struct {
	Task
	headers  string
	attempts int       // at most, or 0 for those of the queue
	due      time.Time // when it may begin
	server   *server
	key      string // the id of its lease
	lease    *renewal.Lease
	err      error  // of the handler, once it has returned
	errText  string // of err, if the task has failed; Redis keeps it

	// The mu of the server guards the fields below.
	timer wheel.Timer // until it is due
	began time.Time   // when a worker took it
	told  bool        // Redis knows that it has begun
	ended bool
}

// note is the end of an attempt, or its beginning, as the script takes it.
type note struct {
	attempt *attempt
	outcome Outcome
	pause   time.Duration // until the next attempt may begin
}

// begun is the word for the beginning of an attempt in the place of an Outcome.
const begun Outcome = "begun"

// work runs tasks while there are any.
func (s *server) work(a *attempt) {
	for a != nil {
		a = s.runOnce(a)
	}
}

// runOnce runs a task, and returns the next one for the worker.
func (s *server) runOnce(a *attempt) (next *attempt) {
	c, e := s.queue.client, s.event(a)
	if !a.lease.Valid() { // while it waited: another process may run it
		e.Outcome = OutcomeLost
		c.monitor.ended(e, false)
		return s.endAndTakeNext(a, OutcomeLost, 0, 0)
	}
	began := c.wheel.Now()
	e.Late = max(0, began.Sub(a.due))
	e.Context = a.lease.Context(s.ctx)
	e.Context = c.monitor.began(e.Context, e)
	task := a.Task // the handler may change it
	usercode.Here(func() { e.Err = s.handle(e.Context, &task) }, func(f *usercode.Failure) {
		e.Err = fmt.Errorf("delay: the handler of %s %w", scripts.Quote(a.ID), f)
		c.logger.Error("delay: a handler panicked",
			slog.String("queue", s.queue.name), slog.Any("panic", f.Value), slog.String("stack", f.Stack))
		if f.Exited {
			s.continueAfter(a, e, began)
		}
	})
	return s.finish(a, e, began)
}

// continueAfter goes on as a worker whose goroutine a handler has ended.
func (s *server) continueAfter(a *attempt, e Event, began time.Time) {
	s.queue.client.gate.Workers.Go(func() { s.work(s.finish(a, e, began)) })
}

// finish ends an attempt after its handler, and returns the next one for the worker.
func (s *server) finish(a *attempt, e Event, began time.Time) (next *attempt) {
	c := s.queue.client
	e.Took, a.err = c.wheel.Now().Sub(began), e.Err
	outcome, pause := s.outcome(a, e.Err), time.Duration(0)
	if e.Outcome = outcome; a.lease.Err() != nil {
		e.Outcome = OutcomeLost
	}
	c.monitor.ended(e, true)
	switch outcome {
	case OutcomeExhausted:
		c.monitor.call(func() { a.errText = cut(a.err.Error(), maxError) })
	case OutcomeRetried:
		pause = time.Second // if the backoff fails
		c.monitor.call(func() { pause = min(max(0, s.queue.config.backoff(a.Failures+1, a.err)), MaxDelay) })
	}
	return s.endAndTakeNext(a, outcome, pause, e.Took)
}

// cut returns the longest prefix of a text that has at most some bytes and ends with a whole character.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	end := most
	for end > most-utf8.UTFMax && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}

// outcome returns how an attempt has ended. That it is done, or has failed for good, counts although the lease is lost:
// Redis decides by the token.
func (s *server) outcome(a *attempt, err error) Outcome {
	switch {
	case err == nil:
		return OutcomeDone
	case isFinal(err):
		return OutcomeExhausted
	case a.lease.Err() != nil:
		return OutcomeLost
	case s.ctx.Err() != nil:
		return OutcomeHandedBack
	case a.Failures+1 >= cmp.Or(a.attempts, s.queue.config.attempts):
		return OutcomeExhausted
	default:
		return OutcomeRetried
	}
}

// endAndTakeNext ends an attempt, and returns the next one for the worker.
func (s *server) endAndTakeNext(a *attempt, outcome Outcome, pause, took time.Duration) (next *attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if outcome != OutcomeLost { // it may not have begun
		s.took = max(1, s.took+(took-s.took)/8)
	}
	s.endLocked(a, outcome, pause)
	if len(s.ready) > 0 {
		next, s.ready = s.ready[0], s.ready[1:]
		s.takeLocked(next)
	} else if s.running--; s.stopped && s.running == 0 {
		close(s.idle)
	}
	return next
}

// event returns the Event of an attempt.
func (s *server) event(a *attempt) Event {
	return Event{
		Context: s.ctx, Queue: s.queue.name, ID: a.ID, Token: a.Token, Failures: a.Failures, Losses: a.Losses,
		Headers: a.headers,
	}
}
