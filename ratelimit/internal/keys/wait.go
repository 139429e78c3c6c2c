package keys

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
)

// waited is told how a wait in line has ended, before the Client can be closed.
type waited func(by algo.Source, took time.Duration, err error)

// Wait blocks until n permits are granted. It tells how, unless the call was refused without waiting.
func (s *State) Wait(ctx context.Context, n int64, tell waited) (waits bool, err error) {
	done := make(chan error, 1)
	w, j, err := s.join(ctx, n, func(err error) { done <- err })
	if err != nil || w == nil {
		return false, err
	}
	defer s.Keys.Leave()
	err = s.OperationError("wait", s.waitInLine(ctx, w, j, done))
	tell(w.source, s.Keys.Now()-w.Since, err)
	return true, err
}

func (s *State) waitInLine(ctx context.Context, w *Waiter, j *Job, done <-chan error) error {
	s.Send(j)
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
	if s.Leave(w) {
		return conventions.Cause(ctx)
	}
	return <-done // it ended at the same time
}

// WaitFunc tells when n permits are granted, or can no longer be granted. It calls done after that, or after cancel,
// when the Client may be closed, and releases the state. If the call is refused, or n is 0, it does none of that.
func (s *State) WaitFunc(
	ctx context.Context, n int64, tell waited, done func(error),
) (cancel func(), waits bool, err error) {
	var stop func() bool
	var w *Waiter
	stopped := make(chan struct{}) // w and stop are set
	over := func(err error) {
		err = s.OperationError("wait", err)
		tell(w.source, s.Keys.Now()-w.Since, err)
		s.Release()
		s.Keys.Leave()
		done(err)
	}
	w, j, err := s.join(ctx, n, func(err error) {
		go func() {
			<-stopped
			stop()
			over(err)
		}()
	})
	if err != nil || w == nil {
		return nil, false, err
	}
	stop = context.AfterFunc(ctx, func() {
		if s.Leave(w) {
			over(conventions.Cause(ctx))
		}
	})
	close(stopped)
	s.Send(j)
	return func() {
		if s.Leave(w) {
			stop()
			go over(context.Canceled)
		}
	}, true, nil
}

// join enters the gate, adds a waiter to the line, and returns the job to send for it. A call for no permits
// has no waiter.
func (s *State) join(ctx context.Context, n int64, end func(error)) (w *Waiter, j *Job, err error) {
	defer func() { err = s.OperationError("wait", err) }()
	if ctx.Err() != nil {
		return nil, nil, conventions.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n == 0 && !s.Keys.Gate.Closed() {
		return nil, nil, nil
	}
	if err := s.Keys.Enter(); err != nil {
		return nil, nil, err
	}
	now := s.Keys.Now()
	w = &Waiter{N: n, Since: now, Deadline: Never, End: func(err error) {
		s.Keys.Waiting.Add(-1)
		end(err)
	}}
	if deadline, ok := ctx.Deadline(); ok {
		w.Deadline = now + deadline.Sub(conventions.Now())
	}
	if s.line == nil {
		s.line = NewLine(s.Algorithm)
	}
	l := s.line
	if !l.Push(w, now, &s.known) {
		s.Keys.Leave()
		return nil, nil, ErrWouldExceedDeadline
	}
	s.Keys.Waiting.Add(1)
	return w, s.pumpLocked(now), nil
}

// Leave removes a waiter from the line, and reports whether it was still there.
func (s *State) Leave(w *Waiter) bool {
	s.mu.Lock()
	now := s.Keys.Now()
	left := s.line.Leave(w, now)
	var j *Job
	if left {
		s.Keys.Waiting.Add(-1)
		j = s.pumpLocked(now)
	}
	s.mu.Unlock()
	s.Send(j)
	return left
}

// pumpLocked serves the waiters that can be served, schedules the next wake-up of the line, and returns the job
// to send.
func (s *State) pumpLocked(now time.Duration) *Job {
	l := s.line
	for {
		next := l.Advance(now, &s.known)
		switch {
		case next.Look:
			if err := s.refused(); err != nil {
				s.waitByPolicyLocked(err)
				continue
			}
			j := s.newJobLocked(jobLine, now)
			if j == nil {
				l.finishAll(now, ErrClosed)
				return nil
			}
			l.begin()
			s.wakeLocked(now, next.Wake)
			return j
		case next.GiveBack:
			if s.Algorithm.Traits().CanGiveBack && s.Keys.Breakers.Refuse(s) != nil {
				l.giveBackLater(now)
				continue
			}
			return s.giveBackLocked()
		}
		s.wakeLocked(now, next.Wake)
		return nil
	}
}

// waitByPolicyLocked decides the waiters by the policy while Redis is down, in order.
func (s *State) waitByPolicyLocked(err error) {
	every, l, now := s.Keys.Breakers.Probe, s.line, s.Keys.Now()
	l.retryAt = now + every + rand.N(every/2+1)
	for w := l.first; w != nil; w = l.first {
		r, err := s.policyLocked(w.N, err)
		switch {
		case err == nil && r.Allowed:
			w.source = algo.ByPolicy
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
func (s *State) giveBackLocked() *Job {
	spans := s.line.Charged.TakeAll()
	if !s.Algorithm.Traits().CanGiveBack {
		return nil
	}
	j := s.newJobLocked(jobGiveBack, s.Keys.Now())
	if j != nil {
		j.Back = spans
	}
	return j
}

// leavePlacesLocked returns a job that gives back the places of a Client that is closed. The caller counts at the gate,
// or Close has not waited yet.
func (s *State) leavePlacesLocked() *Job {
	if !s.Algorithm.Traits().Reserves || s.line.Charged.N == 0 {
		return nil
	}
	s.Keys.Gate.EnterInside()
	j := s.makeJobLocked(jobGiveBack, s.Keys.Now())
	j.Back = s.line.Charged.TakeAll()
	return j
}

// wakeLocked schedules a look of the line at the given time, unless it looks earlier.
func (s *State) wakeLocked(now, at time.Duration) {
	if at == Never || s.armed && s.timerAt <= at {
		return
	}
	d := max(at-now, 0)
	if s.armed && s.timer.Reschedule(d) {
		s.timerAt = at
		return
	}
	s.refs.Add(1)
	timer, err := wheelentry.AfterFunc(s.Keys.Wheel, d, s.woken)
	if err != nil {
		s.refs.Add(-1)
		s.line.finishAll(now, err)
		return
	}
	s.timer, s.timerAt, s.armed = timer, at, true
}

// woken is the callback of the line's one wheel entry. After the stop of the wheel there is no other.
func (s *State) woken(stopped error) {
	s.mu.Lock()
	s.armed = false
	now := s.Keys.Now()
	if stopped != nil {
		s.line.finishAll(now, stopped)
	}
	j := s.pumpLocked(now)
	s.mu.Unlock()
	s.Send(j)
	s.Release()
}
