package keys

import (
	"context"
	"errors"

	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
)

// UpTo asks for as many of n permits as are available.
func (s *State) UpTo(ctx context.Context, n int64) (algo.Decision, error) {
	if n == 0 {
		return s.Allow(ctx, 0)
	}
	r, err := s.grantUpTo(ctx, n)
	return r, s.OperationError("allow up to", err)
}

func (s *State) grantUpTo(ctx context.Context, n int64) (algo.Decision, error) {
	if err := s.begin(ctx); err != nil {
		return algo.Decision{}, err
	}
	s.mu.Lock()
	r, ok := s.rememberedLocked(1, s.Keys.Now())
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
			return algo.Decision{}, err
		}
	}
	began := beginsToWait(ctx)
	j, err := s.ask(ctx, algo.UpTo(n, s.Algorithm.Traits().Entries), algo.Settlement{}, false)
	if err == nil {
		return s.partOf(j), nil
	}
	if err = s.outage(ctx, err, began); !errors.Is(err, ErrUnavailable) {
		return algo.Decision{}, err
	}
	return s.upToByPolicy(n, err)
}

// partOf returns the decision on as many permits as are available.
func (s *State) partOf(j *Job) algo.Decision {
	r := j.Got.Snapshot.State()
	r.Granted = j.Got.Granted[0] * j.Runs[0].N
	for _, sp := range j.Got.Spans {
		r.Entry = sp.Entry // a log has one span
	}
	if r.Allowed = r.Granted > 0; r.Allowed {
		r.RetryAfter = 0
	}
	return r
}

// upToByPolicy decides upTo while Redis is down.
func (s *State) upToByPolicy(n int64, down error) (algo.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.policyLocked(n, down)
	if err == nil && !r.Allowed {
		return s.policyLocked(max(1, min(n, r.Remaining)), down)
	}
	return r, err
}
