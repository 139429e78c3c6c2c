package ratelimit

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
)

// wait blocks until n permits are granted.
func (s *keyState) wait(ctx context.Context, of subject) error {
	done := make(chan error, 1)
	w, j, err := s.join(ctx, of, func(err error) { done <- err })
	if err != nil || w == nil {
		return err
	}
	defer s.client.leave()
	return s.waited(ctx, of, w, s.waitInLine(ctx, w, j, done))
}

// waited reports how a wait ended, and returns its error.
func (s *keyState) waited(ctx context.Context, of subject, w *waiter, err error) error {
	err = s.operationError("wait", err)
	s.reportWaited(ctx, of, w, err)
	return err
}

func (s *keyState) reportWaited(ctx context.Context, of subject, w *waiter, err error) {
	s.client.reportWait(ctx, of, w.source, err, s.client.now()-w.since)
}

func (s *keyState) waitInLine(ctx context.Context, w *waiter, j *job, done <-chan error) error {
	s.send(j)
	select {
	case err := <-done:
		return err
	default:
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	if s.leave(w) {
		return conventions.Cause(ctx)
	}
	return <-done // it ended at the same time
}

// waitFunc calls f when n permits are granted, or can no longer be granted. It calls then after that, or after
// cancel.
func (s *keyState) waitFunc(ctx context.Context, of subject, f func(error), then func()) (cancel func()) {
	var stop func() bool
	var w *waiter
	stopped := make(chan struct{}) // w and stop are set
	over := func(err error) {
		err = s.operationError("wait", err)
		s.client.apart(func() { s.reportWaited(ctx, of, w, err) })
		then()
		s.client.leave()
		s.client.callback(f, err)
	}
	w, j, err := s.join(ctx, of, func(err error) {
		go func() {
			<-stopped
			stop()
			over(err)
		}()
	})
	if err != nil || w == nil {
		then()
		return s.client.refuse(f, err)
	}
	stop = context.AfterFunc(ctx, func() {
		if s.leave(w) {
			over(conventions.Cause(ctx))
		}
	})
	close(stopped)
	s.send(j)
	return func() {
		if s.leave(w) {
			stop()
			go over(context.Canceled)
		}
	}
}

// join enters the gate, adds a waiter to the line, and returns the job to send for it. A call for no permits
// has no waiter.
func (s *keyState) join(ctx context.Context, of subject, end func(error)) (w *waiter, j *job, err error) {
	began := s.client.now()
	defer func() {
		if err != nil {
			err = s.operationError("wait", err)
			s.client.report(ctx, of, &Result{}, err, began)
		}
	}()
	if ctx.Err() != nil {
		return nil, nil, conventions.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if of.n == 0 && !s.client.gate.Closed() {
		return nil, nil, nil
	}
	if err := s.client.enter(); err != nil {
		return nil, nil, err
	}
	now := s.client.now()
	w = &waiter{n: of.n, since: now, deadline: never, end: func(err error) {
		s.client.monitor.waiting.Add(-1)
		end(err)
	}}
	if deadline, ok := ctx.Deadline(); ok {
		w.deadline = now + deadline.Sub(conventions.Now())
	}
	if s.line == nil {
		s.line = newLine(s.algorithm)
	}
	l := s.line
	if !l.push(w, now, &s.known) {
		s.client.leave()
		return nil, nil, ErrWouldExceedDeadline
	}
	s.client.monitor.waiting.Add(1)
	return w, s.pumpLocked(now), nil
}

// leave removes a waiter from the line, and reports whether it was still there.
func (s *keyState) leave(w *waiter) bool {
	s.mu.Lock()
	now := s.client.now()
	left := s.line.leave(w, now)
	var j *job
	if left {
		s.client.monitor.waiting.Add(-1)
		j = s.pumpLocked(now)
	}
	s.mu.Unlock()
	s.send(j)
	return left
}

// pumpLocked serves the waiters that can be served, schedules the next wake-up of the line, and returns the job
// to send.
func (s *keyState) pumpLocked(now time.Duration) *job {
	l := s.line
	for {
		next := l.advance(now, &s.known)
		switch {
		case next.look:
			if err := s.refused(); err != nil {
				s.waitByPolicyLocked(err)
				continue
			}
			j := s.newJobLocked(jobLine, now)
			if j == nil {
				l.finishAll(now, ErrClosed)
				return nil
			}
			l.looking = true // its requests are collected when it is sent
			s.wakeLocked(now, next.wake)
			return j
		case next.giveBack:
			if s.algorithm.Traits().CanGiveBack && s.client.breakers.Refuse(s) != nil {
				l.giveBackLater(now)
				continue
			}
			return s.giveBackLocked()
		}
		s.wakeLocked(now, next.wake)
		return nil
	}
}

// waitByPolicyLocked decides the waiters by the policy while Redis is down, in order.
func (s *keyState) waitByPolicyLocked(err error) {
	every, l, now := s.client.breakers.Probe, s.line, s.client.now()
	l.retryAt = now + every + rand.N(every/2+1)
	for w := l.first; w != nil; w = l.first {
		r, err := s.policyLocked(w.n, err)
		switch {
		case err == nil && r.Allowed:
			w.source = SourceDegraded
			l.finish(w, now, nil)
			continue
		case err == nil:
			l.retryAt = min(l.retryAt, now+max(r.RetryAfter, time.Millisecond))
		case !errors.Is(err, ErrUnavailable):
			l.finish(w, now, err)
			continue
		}
		return
	}
}

// giveBackLocked returns a job that gives back the permits charged for waiters that have left.
func (s *keyState) giveBackLocked() *job {
	spans := s.line.charged.takeAll()
	if !s.algorithm.Traits().CanGiveBack {
		return nil
	}
	j := s.newJobLocked(jobGiveBack, s.client.now())
	if j != nil {
		j.Back = spans
	}
	return j
}

// leavePlacesLocked returns a job that gives back the places of a Client that is closed. The caller counts at the gate,
// or Close has not waited yet.
func (s *keyState) leavePlacesLocked() *job {
	if !s.algorithm.Traits().Reserves || s.line.charged.n == 0 {
		return nil
	}
	s.client.gate.EnterInside()
	j := s.makeJobLocked(jobGiveBack, s.client.now())
	j.Back = s.line.charged.takeAll()
	return j
}

// wakeLocked schedules a look of the line at the given time, unless it looks earlier.
func (s *keyState) wakeLocked(now, at time.Duration) {
	if at == never || s.armed && s.timerAt <= at {
		return
	}
	d := max(at-now, 0)
	if s.armed && s.timer.Reschedule(d) {
		s.timerAt = at
		return
	}
	s.refs.Add(1)
	timer, err := wheelentry.AfterFunc(s.client.wheel, d, s.woken)
	if err != nil {
		s.refs.Add(-1)
		s.line.finishAll(now, err)
		return
	}
	s.timer, s.timerAt, s.armed = timer, at, true
}

// woken is the callback of the line's one wheel entry. After the stop of the wheel there is no other.
func (s *keyState) woken(stopped error) {
	s.mu.Lock()
	s.armed = false
	now := s.client.now()
	if stopped != nil {
		s.line.finishAll(now, stopped)
	}
	j := s.pumpLocked(now)
	s.mu.Unlock()
	s.send(j)
	s.release()
}
