package ratelimit

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/contexts"
)

// maxReserve is the maximum delay of a reservation. So it bounds how long a state can lock out after the
// server's clock was set back. The scripts have the same number.
const maxReserve = time.Minute

// Reservation is the right to use n permits from a certain time on. It is safe for concurrent use. A nil or
// zero Reservation is for no permits.
type Reservation struct {
	at   time.Time
	span span
	made *keyState // the state that made it; by now the key may have another
	debt int64     // permits that Settle may charge above a whole burst; for a log it is the rate

	mu   sync.Mutex
	over bool
}

// Delay returns the time from now until the permits may be used, or 0 if they may be used now.
func (r *Reservation) Delay() time.Duration {
	if r == nil || r.made == nil {
		return 0
	}
	return max(0, r.at.Sub(r.made.client.wheel.Now()))
}

// Wait blocks until the permits may be used. If ctx ends first, Wait returns its error and the reservation
// stays in force; Cancel gives it back. Wait takes no notice of Cancel. If the wheel is stopped, the error
// matches wheel.ErrStopped.
func (r *Reservation) Wait(ctx context.Context) error {
	switch {
	case ctx == nil:
		return argument.Nil("context")
	case r == nil || r.made == nil:
		return nil
	}
	return r.made.operationError("wait", r.made.client.wheel.Sleep(ctx, r.Delay()))
}

// Cancel gives the permits back, and reports whether others can use them. Once the permits may be used it does
// nothing and returns false, so it can be deferred. The permits of a Limiter can be given back only if nothing
// was charged to the key since, because later requests were planned behind them; otherwise they are lost.
// Cancel blocks for one round trip, at most until ctx ends; concurrent calls wait for each other. For errors
// see Reserve.
//
// A second call does nothing and returns false. For a Limiter this holds even if the first returned an error,
// after which the permits may have been given back; for a StoredLimiter it tries again.
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
	s := c.use(r.made.id, r.made.algorithm)
	defer s.release()
	given, err := s.takeBack(ctx, []span{r.span})
	r.over = err == nil || !s.algorithm.traits().entries // a charge without an id could be taken back twice
	return given, s.operationError("cancel", err)
}

// Settle says that used permits of the reservation were used, 0 or more, when the work has ended and its cost is
// known. If they are fewer than were reserved, the others are given back: all that have not become available by
// themselves meanwhile, at most once, and never so that the limit grants more than without the reservation. If they
// are more, Redis charges the rest as a debt, for which later requests wait, as far as WithDebt allows; beyond that
// the error is a *DebtError. If the process dies before Settle, the reservation counts in full.
//
// Settle blocks for one round trip, at most until ctx ends; concurrent calls wait for each other. After a call that
// returned nil or a *DebtError, further calls of Settle and Cancel do nothing. After another error a return is lost,
// and may have been made; a debt may have been booked, and the call can be repeated. For errors see Reserve.
func (r *Reservation) Settle(ctx context.Context, used int64) error {
	switch {
	case ctx == nil:
		return argument.Nil("context")
	case used < 0:
		return argument.Error("used", used, "must not be negative")
	case r == nil || r.made == nil:
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.made.client
	if c.gate.Closed() {
		return r.made.operationError("settle", ErrClosed)
	}
	if r.over {
		return nil
	}
	s := c.use(r.made.id, r.made.algorithm)
	defer s.release()
	if debt := used - r.span.n; debt > 0 {
		booked, err := s.book(ctx, debt, r.debt)
		r.over = err == nil
		if err == nil && booked < debt {
			err = &DebtError{Booked: booked, Dropped: debt - booked}
		}
		return s.operationError("settle", err)
	}
	r.over = true // a part could be given back twice
	if used == r.span.n {
		return nil
	}
	part := r.span
	s.algorithm.skip(&part, used)
	_, err := s.takeBack(ctx, []span{part})
	return s.operationError("settle", err)
}

// book charges a debt, as far as the state exceeds a whole burst by most permits then, and returns how much of it.
func (s *keyState) book(ctx context.Context, debt, most int64) (int64, error) {
	j, err := s.ask(ctx, ask{debt: debt, most: most}, false)
	if err != nil {
		return 0, err
	}
	return j.got.booked, nil
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
	j, err := s.ask(ctx, ask{runs: []equalRequests{{n, 1}}, inOrder: true, stamped: true, ahead: ahead}, true)
	if err != nil {
		return nil, err
	}
	switch {
	case j.got.exceeding:
		return nil, ErrExceedsLimit
	case j.got.granted[0] == 0:
		return nil, ErrWouldExceedDeadline
	}
	found := j.got.spans[0]
	// It counts from the reply, so that it is never early.
	found.from = max(s.algorithm.fit(j.got.spans, n, -never/2).at, s.client.now())
	return &found, nil
}

// takeBack gives charges back, and reports whether others can use them.
func (s *keyState) takeBack(ctx context.Context, spans []span) (bool, error) {
	if len(spans) == 0 {
		return false, nil
	}
	j, err := s.ask(ctx, ask{back: spans}, false)
	switch {
	case errors.Is(err, ErrNotSet):
		return false, nil
	case err != nil || !j.got.takenBack:
		return false, err
	}
	s.mu.Lock()
	next := s.freedLocked()
	s.mu.Unlock()
	s.send(next)
	return true, nil
}

// freedLocked is called when this process has given permits of the key back. It returns a job to send, or nil.
func (s *keyState) freedLocked() *job {
	s.freedAt = s.client.wheel.Now()
	s.known = knowledge{}
	return s.kickLocked()
}
