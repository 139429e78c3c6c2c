package ratelimit

import (
	"context"
	"errors"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/contexts"
)

// upTo asks for as many of n permits as there are.
func (s *keyState) upTo(ctx context.Context, n int64) (Result, error) {
	if n == 0 {
		return s.allow(ctx, 0)
	}
	r, err := s.grantUpTo(ctx, n)
	return r, s.operationError("allow up to", err)
}

func (s *keyState) grantUpTo(ctx context.Context, n int64) (Result, error) {
	if ctx.Err() != nil {
		return Result{}, contexts.Error(ctx)
	}
	if s.client.gate.Closed() {
		return Result{}, ErrClosed
	}
	if r, ok := s.upToFromMemory(); ok {
		return r, nil
	}
	began := time.Now()
	j, err := s.ask(ctx, s.partly(n))
	if err == nil {
		return s.partOf(j), nil
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil && ranOut(ctx, began) {
		err = unavailable(contexts.Error(ctx))
	}
	if !errors.Is(err, ErrUnavailable) {
		return Result{}, err
	}
	return s.upToByPolicy(n, err)
}

// partly asks for n permits one by one, which costs the scripts no more. The entries of a log are whole, so
// there each request is for half of what is left to ask: whatever there is, is a sum of some of them, and
// taking them in order finds it.
func (s *keyState) partly(n int64) (a ask) {
	if !s.logged() {
		a.addRun(1, n)
		return a
	}
	for ; n > 0; n /= 2 {
		a.addRun((n+1)/2, 1)
	}
	return a
}

// partOf is the result of what partly asked for.
func (s *keyState) partOf(j *job) Result {
	r := j.got.snapshot.state()
	for k, run := range j.runs {
		r.Granted += j.got.granted[k] * run.n
	}
	for _, sp := range j.got.spans {
		if s.logged() {
			r.grant = append(r.grant, sp.entry)
		}
	}
	if r.Allowed = r.Granted > 0; r.Allowed {
		r.RetryAfter = 0
	}
	return r
}

// upToFromMemory is upTo by what Redis said last.
func (s *keyState) upToFromMemory() (Result, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rememberedLocked(1, s.client.now())
}

// upToByPolicy decides while Redis is away.
func (s *keyState) upToByPolicy(n int64, err error) (r Result, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; n > 0; n /= 2 {
		part, err := s.policyLocked((n+1)/2, err)
		if err != nil && !errors.Is(err, ErrExceedsLimit) {
			return part, err
		}
		granted := r.Granted + part.Granted
		grant := append(r.grant, part.grant...)
		r = part
		r.Granted, r.grant = granted, grant
	}
	if r.Allowed = r.Granted > 0; r.Allowed {
		r.RetryAfter = 0
	}
	return r, nil
}
