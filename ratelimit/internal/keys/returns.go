package keys

import (
	"context"
	"errors"
	"time"

	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
)

// MaxReserve is the maximum delay of a reservation. So it bounds how long a state can lock out after the
// server's clock was set back. The scripts have the same number.
const MaxReserve = time.Minute

// Undone reports whether the script of a job that is over, or that its caller has left, was certainly not executed.
func (j *Job) Undone() bool {
	j.state.mu.Lock()
	defer j.state.mu.Unlock()
	return j.undoneLocked()
}

func (j *Job) undoneLocked() bool { return j.sentAt.IsZero() || j.refused }

// Given reports whether a job has given permits back, which others can use now.
func (j *Job) Given() bool {
	if !j.Got.TakenBack {
		return false
	}
	j.state.freed()
	return true
}

// FreedAll tells the combination that made a reservation that permits of its parts were given back.
func (s *State) FreedAll() {
	if _, several := s.Algorithm.(*All); several {
		current := s.Keys.Use(s.ID, s.Algorithm)
		current.freed()
		current.Release()
	}
}

// ReserveInRedis makes a reservation in Redis.
func (s *State) ReserveInRedis(ctx context.Context, n int64, ahead time.Duration) (*algo.Span, error) {
	j, err := s.ask(ctx, algo.Reserve(n, ahead), algo.Settlement{}, true)
	if err != nil {
		return nil, err
	}
	switch {
	case j.Got.Exceeding:
		return nil, ErrExceedsLimit
	case j.Got.Granted[0] == 0:
		return nil, ErrWouldExceedDeadline
	}
	found := j.Got.Spans[0]
	// It counts from the reply, so that it is never early.
	found.From = max(s.Algorithm.Fit(j.Got.Spans, n, -Never/2).At, s.Keys.Now())
	return &found, nil
}

// TakeBack gives charges back, and reports whether others can use them.
func (s *State) TakeBack(ctx context.Context, spans []algo.Span) (bool, error) {
	if len(spans) == 0 {
		return false, nil
	}
	j, err := s.ask(ctx, algo.Request{}, algo.Settlement{Back: spans}, false)
	switch {
	case errors.Is(err, ErrNotSet):
		return false, nil
	case err != nil:
		return false, err
	}
	return j.Given(), nil
}

// freed is called when this process has given permits of the key back.
func (s *State) freed() {
	s.mu.Lock()
	next := s.freedLocked()
	s.mu.Unlock()
	s.Send(next)
}

// freedLocked is freed without sending the job that it returns, if any.
func (s *State) freedLocked() *Job {
	s.freedAt = s.Keys.Wheel.Now()
	s.known = Knowledge{}
	return s.kickLocked()
}

// LimitChanged is called when this process has set or deleted the limit, or the count. See changedLocked.
func (s *State) LimitChanged(old int64) {
	s.mu.Lock()
	s.changedLocked(old)
	j := s.kickLocked()
	s.mu.Unlock()
	s.Send(j)
}
