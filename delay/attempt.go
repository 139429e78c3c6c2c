package delay

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
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
	headers string
	due     time.Time // when it may begin
	lease   *renewal.Lease
	timer   wheel.Timer // until it is due
}

// ending is the end of an attempt, as the script takes it.
type ending struct {
	id      string
	token   int64
	outcome Outcome
	pause   time.Duration // until the next attempt may begin
}

// work runs tasks while there are any.
func (s *server) work(a *attempt) {
	for a != nil {
		a = s.attempt(a)
	}
}

// attempt runs a task once, and returns the next one for the worker. If the handler ends the goroutine, another
// continues the worker.
func (s *server) attempt(a *attempt) (next *attempt) {
	c, e := s.queue.client, s.event(a)
	if !a.lease.Valid() { // while it waited: another process may run it
		e.Outcome = Lost
		c.monitor.ended(e, false)
		return s.leave(a, Lost, 0, 0)
	}
	began := c.wheel.Now()
	e.Late = max(0, began.Sub(a.due))
	e.Context = c.monitor.began(a.lease.Context(s.ctx), e)
	e.Err = fmt.Errorf("delay: the handler of %s has ended its goroutine", scripts.Quote(a.ID))
	returned := false
	defer func() {
		e.Took = c.wheel.Now().Sub(began)
		outcome, pause := s.outcome(a, e.Err)
		if e.Outcome = outcome; a.lease.Err() != nil {
			e.Outcome = Lost
		}
		c.monitor.ended(e, true)
		if next = s.leave(a, outcome, pause, e.Took); !returned {
			c.gate.Workers.Go(func() { s.work(next) })
		}
	}()
	e.Err = s.run(e.Context, a)
	returned = true
	return nil // what the deferred function returns
}

// outcome returns how an attempt has ended, and the time until the next one. That it is done counts although the lease
// is lost: Redis decides by the token.
func (s *server) outcome(a *attempt, err error) (outcome Outcome, pause time.Duration) {
	switch config := &s.queue.config; {
	case err == nil:
		return Done, 0
	case a.lease.Err() != nil:
		return Lost, 0
	case s.ctx.Err() != nil:
		return HandedBack, 0
	case a.Failures+1 >= config.attempts:
		return Exhausted, 0
	default:
		pause = time.Second // if the function of the user panics
		s.queue.client.monitor.call(func() { pause = config.backoff(a.Failures + 1) })
		return Retried, min(max(0, pause), MaxDelay)
	}
}

// leave ends an attempt, and returns the next one for the worker.
func (s *server) leave(a *attempt, outcome Outcome, pause, took time.Duration) (next *attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if outcome != Lost { // it may not have begun
		s.took = max(1, s.took+(took-s.took)/8)
	}
	s.endLocked(a, outcome, pause)
	if len(s.ready) > 0 {
		next, s.ready = s.ready[0], s.ready[1:]
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

// run calls the handler.
func (s *server) run(ctx context.Context, a *attempt) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("delay: the handler of %s panicked: %v", scripts.Quote(a.ID), r)
			s.queue.client.logger.Error("delay: a handler panicked",
				slog.String("queue", s.queue.name), slog.Any("panic", r), slog.String("stack", string(debug.Stack())))
		}
	}()
	task := a.Task // the handler may change it
	return s.handle(ctx, &task)
}
