package ratelimit

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/contexts"
)

// maxReserve bounds how far ahead a reservation may lie, and so how long a state can lock out after the
// server's clock was set back. The scripts know it too.
const maxReserve = time.Minute

// Reservation is the right to n permits from a time on. It is safe for concurrent use. A nil or zero one is
// for no permits.
type Reservation struct {
	at   time.Time
	span span
	made *keyState // by which; by now the key may have another

	mu   sync.Mutex
	over bool
}

// Delay returns the time from now until the permits may be used, 0 if they may be used now.
func (r *Reservation) Delay() time.Duration {
	if r == nil || r.made == nil {
		return 0
	}
	return max(0, r.at.Sub(r.made.client.wheel.Now()))
}

// Wait blocks until the permits may be used. If ctx ends before, its error is returned and the reservation
// stands; Cancel it. Wait ignores Cancel. If the wheel is stopped, the error matches wheel.ErrStopped.
func (r *Reservation) Wait(ctx context.Context) error {
	switch {
	case ctx == nil:
		return argument.Nil("context")
	case r == nil || r.made == nil:
		return nil
	}
	return r.made.operationError("wait", r.made.client.wheel.Sleep(ctx, r.Delay()))
}

// Cancel gives the permits back, and reports whether others can use them. Once they may be used it does
// nothing and returns false, so it can be deferred. Permits of a Limiter can be given back only as long as
// nothing was charged to the key since, because others may have planned on them: otherwise they are lost. A
// second call does nothing and returns false, also after an error that leaves open whether the first was
// executed; only for a StoredLimiter it tries again after an error. It blocks for one round trip, or until
// ctx ends; concurrent calls wait for each other. For errors see Reserve.
func (r *Reservation) Cancel(ctx context.Context) (bool, error) {
	switch {
	case ctx == nil:
		return false, argument.Nil("context")
	case r == nil || r.made == nil:
		return false, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.made.client
	if c.gate.Closed() {
		return false, r.made.operationError("cancel", ErrClosed)
	}
	if r.over || r.Delay() == 0 {
		return false, nil
	}
	s := c.use(r.made.id, r.made.algorithm, r.made.out)
	defer s.release()
	given, err := s.takeBack(ctx, []span{r.span})
	r.over = err == nil || !s.logged()
	return given, s.operationError("cancel", err)
}

// logged reports whether the key has a log. Its entries are used as a whole, and can be given back by a call that
// is repeated.
func (s *keyState) logged() bool {
	_, log := s.algorithm.(*slidingLog)
	return log
}

// reserve makes a reservation at most as far ahead as ctx allows.
func (s *keyState) reserve(ctx context.Context, of subject) (*Reservation, error) {
	began := s.client.start()
	made, err := s.reserveWithin(ctx, of.n)
	err = s.operationError("reserve", err)
	r := Result{Allowed: err == nil}
	if made != nil {
		r.Granted = of.n
	}
	s.client.report(ctx, of, &r, err, began)
	return made, err
}

func (s *keyState) reserveWithin(ctx context.Context, n int64) (*Reservation, error) {
	if ctx.Err() != nil {
		return nil, contexts.Error(ctx)
	}
	if err := s.client.enter(); err != nil {
		return nil, err
	}
	defer s.client.leave()
	if n == 0 {
		return &Reservation{at: s.client.wheel.Now(), made: s}, nil
	}
	ahead := maxReserve
	if deadline, ok := ctx.Deadline(); ok {
		ahead = max(0, min(ahead, time.Until(deadline)))
	}
	found, err := s.reserveInRedis(ctx, n, ahead)
	if err != nil {
		return nil, err
	}
	return &Reservation{at: s.client.began.Add(found.from), span: *found, made: s}, nil
}

// reserveInRedis makes a reservation in Redis.
func (s *keyState) reserveInRedis(ctx context.Context, n int64, ahead time.Duration) (*span, error) {
	j, err := s.ask(ctx, ask{runs: []equalRequests{{n, 1}}, inOrder: true, ahead: ahead})
	if err != nil {
		if j != nil && ctx.Err() != nil {
			s.abandon(j)
		}
		return nil, err
	}
	switch {
	case j.got.exceeding:
		return nil, ErrExceedsLimit
	case j.got.granted[0] == 0:
		return nil, ErrWouldExceedDeadline
	}
	found := j.got.spans[0]
	// From the reply on, so that it is never early.
	found.from = max(s.algorithm.fit(j.got.spans, n, -never/2).at, s.client.now())
	return &found, nil
}

// abandon gives back what a reservation has charged whose caller has left.
func (s *keyState) abandon(j *job) {
	if s.client.enter() != nil {
		return
	}
	s.refs.Add(1)
	go func() {
		defer s.release()
		defer s.client.leave()
		if <-j.done; j.err == nil && len(j.got.spans) > 0 {
			_, _ = s.takeBack(context.Background(), j.got.spans)
		}
	}()
}

// takeBack gives charges back, and reports whether others can use them.
func (s *keyState) takeBack(ctx context.Context, spans []span) (bool, error) {
	if len(spans) == 0 {
		return false, nil
	}
	j, err := s.ask(ctx, ask{back: spans})
	switch {
	case errors.Is(err, ErrNotSet):
		return false, nil
	case err != nil || !j.got.takenBack:
		return false, err
	}
	s.freed()
	return true, nil
}

// freed is called when this process has given permits of the key back.
func (s *keyState) freed() {
	s.mu.Lock()
	s.freedAt = s.client.wheel.Now()
	s.known = knowledge{}
	j := s.kickLocked()
	s.mu.Unlock()
	s.send(j)
}
