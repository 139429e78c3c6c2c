package ratelimit

import (
	"context"
	"errors"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/contexts"
)

// allow asks for n permits without waiting for them. None are granted always.
func (s *keyState) allow(ctx context.Context, n int64) (Result, error) {
	r, err := s.decide(ctx, n)
	if n == 0 && err == nil {
		r.Allowed, r.RetryAfter = true, 0
	}
	return r, s.operationError("allow", err)
}

// peek tells whether a permit would be granted.
func (s *keyState) peek(ctx context.Context) (Result, error) {
	r, err := s.decide(ctx, 0)
	return r, s.operationError("peek", err)
}

// decide asks for n permits without waiting for them; n = 0 looks.
func (s *keyState) decide(ctx context.Context, n int64) (Result, error) {
	if ctx.Err() != nil {
		return Result{}, contexts.Error(ctx)
	}
	if s.client.gate.Closed() {
		return Result{}, ErrClosed
	}
	s.mu.Lock()
	began := s.client.now()
	if r, ok := s.rememberedLocked(n, began); ok {
		s.mu.Unlock()
		return r, nil
	}
	if err := s.client.breaker.refuse(); err != nil {
		defer s.mu.Unlock()
		return s.policyLocked(n, err)
	}
	c := s.client.calls.Get().(*call)
	c.n = n
	j, err := s.joinLocked(c, began)
	s.mu.Unlock()
	if err != nil {
		return Result{}, err
	}
	if j != nil {
		s.out.submit(ctx, j)
	}
	select {
	case <-c.done:
	default:
		select {
		case <-c.done:
		case <-ctx.Done():
			waited := s.client.now() - began
			return s.gaveUp(ctx, n, time.Now().Add(-waited)) // what was granted stays charged
		}
	}
	r, err := c.res, c.err
	*c = call{done: c.done}
	s.client.calls.Put(c)
	return r, err
}

// leastWait is the least time that a caller has to leave Redis before its deadline counts as an outage: a
// caller that leaves less is not to be granted by that.
const leastWait = 10 * time.Millisecond

// ranOut reports whether ctx has ended because of its deadline, and left Redis leastWait since began. What the
// context promised counts, not when this goroutine ran again: a process that stood still is no outage of Redis.
func ranOut(ctx context.Context, began time.Time) bool {
	if !errors.Is(contexts.Error(ctx), context.DeadlineExceeded) {
		return false
	}
	end, ok := ctx.Deadline()
	if !ok {
		end = time.Now()
	}
	return end.Sub(began) >= leastWait
}

// gaveUp is the answer to a caller whose context has ended. If its deadline came while Redis did not answer,
// the policy decides.
func (s *keyState) gaveUp(ctx context.Context, n int64, began time.Time) (Result, error) {
	err := contexts.Error(ctx)
	if !ranOut(ctx, began) {
		return Result{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policyLocked(n, unavailable(err))
}

// joinLocked enters a call into the next job, which it returns if that is to be sent. now is the time by the Client's
// clock.
func (s *keyState) joinLocked(c *call, now time.Duration) (*job, error) {
	hurry := len(s.pending)+1 >= secondScriptThreshold
	if s.inFlight > 0 && (s.inFlight == maxScripts || !hurry) {
		if s.pending == nil {
			s.pendingSince = now
		}
		s.pending = append(s.pending, c)
		return nil, nil
	}
	j := s.newJobLocked(jobCalls)
	if j == nil {
		return nil, ErrClosed
	}
	s.inFlight++
	j.one[0] = c
	j.calls = j.one[:]
	if len(s.pending) > 0 {
		j.calls, j.since, s.pending = append(s.pending, c), s.pendingSince, nil
	}
	j.compose()
	return j, nil
}

// nextLocked returns the next job of callers that do not wait, or nil if there is none.
func (s *keyState) nextLocked() *job {
	var batch []*call
	pending, now := s.pending, s.client.now()
	for len(pending) > 0 && len(batch) < maxBatch {
		c := pending[0]
		pending[0], pending = nil, pending[1:]
		if r, ok := s.rememberedLocked(c.n, now); ok {
			c.res = r
			c.done <- struct{}{}
			continue
		}
		if batch == nil {
			batch = make([]*call, 0, min(len(pending)+1, maxBatch))
		}
		batch = append(batch, c)
	}
	if s.pending = pending; len(pending) == 0 {
		s.pending = nil
	}
	if batch == nil {
		return nil
	}
	j := s.newJobLocked(jobCalls)
	if j == nil {
		for _, c := range batch {
			c.err = ErrClosed
			c.done <- struct{}{}
		}
		return nil
	}
	j.calls, j.since = batch, s.pendingSince
	j.compose()
	return j
}

// policyLocked returns the policy's answer to a request that Redis did not answer because of err.
func (s *keyState) policyLocked(n int64, err error) (Result, error) {
	if all, ok := s.algorithm.(*combination); ok {
		return s.client.breaker.decideAll(all, n, err)
	}
	limit, known := s.limitLocked()
	return s.client.breaker.decide(s.id, n, limit, known, err)
}

// limitLocked is the limit as far as it is known.
func (s *keyState) limitLocked() (Limit, bool) {
	return s.algorithm.limitOf(s.known.snapshot)
}
