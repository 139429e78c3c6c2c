package ratelimit

import (
	"context"
	"errors"

	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
)

// upTo asks for as many of n permits as are available.
func (s *keyState) upTo(ctx context.Context, n int64) (Result, error) {
	if n == 0 {
		return s.allow(ctx, 0)
	}
	r, err := s.grantUpTo(ctx, n)
	return r, s.operationError("allow up to", err)
}

func (s *keyState) grantUpTo(ctx context.Context, n int64) (Result, error) {
	if err := s.begin(ctx); err != nil {
		return Result{}, err
	}
	s.mu.Lock()
	r, ok := s.rememberedLocked(1, s.client.now())
	waiting := s.waitingLocked()
	s.mu.Unlock()
	if ok {
		return r, nil
	}
	if waiting {
		switch r, denied, err := s.behind(ctx, 1); {
		case denied:
			return r, nil
		case errors.Is(err, ErrUnavailable):
			return s.upToByPolicy(n, err)
		case err != nil:
			return Result{}, err
		}
	}
	began := conventions.Now()
	j, err := s.ask(ctx, s.partly(n), false)
	if err == nil {
		return s.partOf(j), nil
	}
	if err = s.outage(ctx, err, began); !errors.Is(err, ErrUnavailable) {
		return Result{}, err
	}
	return s.upToByPolicy(n, err)
}

// partly asks for as many of n permits as are available: for a log by one entry, which the script makes
// smaller, else one by one, which costs the script no more.
func (s *keyState) partly(n int64) (a algo.Ask) {
	if a.Partial = s.algorithm.Traits().Entries; a.Partial {
		a.AddRun(n, 1)
	} else {
		a.AddRun(1, n)
	}
	return a
}

// partOf returns the result of an ask of partly.
func (s *keyState) partOf(j *job) Result {
	d := j.got.Snapshot.State()
	r := resultOf(&d)
	r.Granted = j.got.Granted[0] * j.Runs[0].N
	for _, sp := range j.got.Spans {
		if s.algorithm.Traits().Entries {
			r.grant = append(r.grant, sp.Entry)
		}
	}
	if r.Allowed = r.Granted > 0; r.Allowed {
		r.RetryAfter = 0
	}
	return r
}

// upToByPolicy decides upTo while Redis is down.
func (s *keyState) upToByPolicy(n int64, down error) (Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.policyLocked(n, down)
	if err == nil && !r.Allowed {
		return s.policyLocked(max(1, min(n, r.Remaining)), down)
	}
	return r, err
}
