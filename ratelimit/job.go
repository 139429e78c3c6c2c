package ratelimit

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/contexts"
)

// jobKind says which callers a job is for.
type jobKind uint8

const (
	jobCalls    jobKind = iota // callers that do not wait
	jobLine                    // waiters
	jobCaller                  // one caller, which waits for the job itself
	jobGiveBack                // none: it gives back what is not wanted any more
)

// job is one script of a key.
type job struct {
	ask
	state  *keyState
	kind   jobKind
	since  time.Duration    // when the first caller came; the Client's timeout counts from there
	one    [1]*call         // room for the calls if it is one
	oneRun [1]equalRequests // and for the runs

	got  answer
	err  error         // why there is none; one of this package's
	done chan struct{} // closed when it is decided, for a caller that waits for it
}

// newJobLocked returns a job, which counts as under way from then on, or nil if the Client is closed.
func (s *keyState) newJobLocked(kind jobKind) *job {
	if s.client.enter() != nil {
		return nil
	}
	s.refs.Add(1)
	j := &job{state: s, kind: kind, since: s.client.now()}
	j.runs = j.oneRun[:0]
	j.last = s.known.snapshot
	return j
}

// hold counts the job as under way once more.
func (j *job) hold() {
	j.state.client.gate.EnterInside()
	j.state.refs.Add(1)
}

// over ends what newJobLocked or hold began.
func (j *job) over() {
	j.state.client.leave()
	j.state.release()
}

// compose sums up the calls.
func (j *job) compose() {
	for _, c := range j.calls {
		j.addRun(c.n, 1)
	}
}

// send has a job sent by another goroutine; nil is none.
func (s *keyState) send(j *job) {
	if j != nil && s.out.line.Begin(j) {
		go s.out.run([]*job{j})
	}
}

// sendFor has a job sent for a caller that waits for it, by its own goroutine if nothing can end its wait.
func (s *keyState) sendFor(ctx context.Context, j *job) {
	if j != nil && ctx.Done() == nil {
		s.out.submit(ctx, j)
		return
	}
	s.send(j)
}

// settle takes note of what became of a job, and tells its callers.
func (j *job) settle(at reading, sentAt time.Time) {
	s := j.state
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.err == nil && !sentAt.Before(s.changed) && !sentAt.Before(s.freedAt) {
		s.noteLocked(j.got.snapshot, at)
	}
	switch j.kind {
	case jobCalls:
		j.settleCallsLocked()
	case jobLine:
		j.settleLineLocked(at)
	case jobCaller:
		close(j.done)
	case jobGiveBack:
	}
}

// next returns the job that follows a settled one, or nil if there is none.
func (j *job) next() (next *job) {
	s := j.state
	s.mu.Lock()
	defer s.mu.Unlock()
	switch j.kind {
	case jobCalls:
		if next = s.nextLocked(); next == nil {
			s.inFlight--
		}
	case jobLine:
		next = s.pumpLocked(s.client.now())
	}
	return next
}

// noteLocked takes note of a snapshot, unless another script has told what was later.
func (s *keyState) noteLocked(found snapshot, at reading) {
	if s.known.snapshot == nil || at.sent >= s.known.sent {
		s.known = knowledge{snapshot: found, sent: at.sent, took: at.got - at.sent}
	}
}

// settleCallsLocked gives each call its result.
func (j *job) settleCallsLocked() {
	s, err := j.state, j.err
	switch {
	case err == nil: // decode has set the results
	case errors.Is(err, ErrUnavailable):
		for _, c := range j.calls {
			c.res, c.err = s.policyLocked(c.n, err)
		}
	default:
		for _, c := range j.calls {
			c.err = err
		}
	}
	for _, c := range j.calls {
		c.done <- struct{}{}
	}
}

// settleLineLocked serves the waiters.
func (j *job) settleLineLocked(at reading) {
	s, l, got, err := j.state, j.state.line, j.got, j.err
	now := s.client.now()
	switch {
	case err == nil:
		l.looked(&j.ask, got, at)
		limit := int64(math.MaxInt64)
		if found, ok := s.limitLocked(); ok {
			limit = found.Burst
		}
		l.serve(now)
		l.refuse(now, &s.known, limit)
	case errors.Is(err, ErrUnavailable):
		l.failed(0)
		l.charged.back = append(l.charged.back, j.back...)
		s.waitByPolicyLocked(err)
	default:
		l.failed(0)
		for w := l.first; w != nil && w.since <= at.sent; w = l.first {
			l.finish(w, now, err)
		}
	}
}

// settleLate adds the permits of a late reply to the line. They are charged in Redis.
func (j *job) settleLate(got answer) {
	s := j.state
	s.mu.Lock()
	var next *job
	if j.kind == jobLine {
		s.line.charged.add(got.spans...)
		next = s.pumpLocked(s.client.now())
	}
	s.mu.Unlock()
	s.send(next)
}

// ask has a job of one caller decided, and returns when it is or ctx ends.
func (s *keyState) ask(ctx context.Context, a ask) (*job, error) {
	s.mu.Lock()
	j := s.newJobLocked(jobCaller)
	if j == nil {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	last, runs := j.last, j.runs
	j.ask = a
	if j.last = last; a.runs == nil {
		j.runs = runs
	}
	j.done = make(chan struct{})
	s.mu.Unlock()
	s.sendFor(ctx, j)
	select {
	case <-j.done:
	default:
		select {
		case <-j.done:
		case <-ctx.Done():
			return j, contexts.Error(ctx)
		}
	}
	return j, j.err
}
