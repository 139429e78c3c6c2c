package keys

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/outage"
)

// Allow asks for n permits without waiting for them. n = 0 is always granted.
func (s *State) Allow(ctx context.Context, n int64) (algo.Decision, error) {
	r, err := s.Decide(ctx, n)
	if n == 0 && err == nil {
		r.Allowed, r.RetryAfter = true, 0
	}
	return r, s.OperationError("allow", err)
}

// Peek returns whether a permit would be granted.
func (s *State) Peek(ctx context.Context) (algo.Decision, error) {
	r, err := s.Decide(ctx, 0)
	return r, s.OperationError("peek", err)
}

// Decide asks for n permits without waiting for them; n = 0 only looks.
func (s *State) Decide(ctx context.Context, n int64) (algo.Decision, error) {
	if err := s.begin(ctx); err != nil {
		return algo.Decision{}, err
	}
	s.mu.Lock()
	began := s.Keys.Now()
	if r, ok := s.rememberedLocked(n, began); ok {
		s.mu.Unlock()
		return r, nil
	}
	if err := s.refused(); err != nil {
		defer s.mu.Unlock()
		return s.policyLocked(n, err)
	}
	if n > 0 && s.waitingLocked() {
		s.mu.Unlock()
		if r, denied, err := s.behind(ctx, n); denied || err != nil {
			return s.orPolicy(r, n, err)
		}
		s.mu.Lock()
	}
	return s.decideTogether(ctx, n, began)
}

// begin returns the error of a call that does not begin.
func (s *State) begin(ctx context.Context) error {
	if ctx.Err() != nil {
		return conventions.Cause(ctx)
	}
	if s.Keys.Gate.Closed() {
		return ErrClosed
	}
	return nil
}

// decideTogether has a script decide on a request that began at some time, and on others. It unlocks the state.
func (s *State) decideTogether(ctx context.Context, n int64, began time.Duration) (algo.Decision, error) {
	c := s.Keys.calls.Get().(*call)
	c.n, c.since, c.values = n, began, ctx
	j, err := s.joinLocked(c)
	s.mu.Unlock()
	if err != nil {
		return algo.Decision{}, err
	}
	waits := beginsToWait(ctx)
	if j != nil {
		s.Keys.Sender.SubmitTimed(ctx, &j.sender, j, s.Route())
	}
	select {
	case <-c.done:
	default:
		select {
		case <-c.done:
		case <-ctx.Done():
			if s.abandon(c) {
				return s.gaveUp(ctx, n, waits) // a grant stays charged
			}
		}
	}
	r, err := c.res, c.err
	*c = call{done: c.done}
	s.Keys.calls.Put(c)
	return r, err
}

// behind denies a request for n permits that came while callers of this process wait for the key. It looks at the key
// first. If they have gone by then, it does not deny, and the request may be granted: it came before those who wait
// next. If Redis does not answer, the error matches errUnavailable.
func (s *State) behind(ctx context.Context, n int64) (_ algo.Decision, denied bool, err error) {
	s.mu.Lock()
	look, err := s.decideTogether(ctx, 0, s.Keys.Now())
	switch {
	case err != nil:
		return algo.Decision{}, false, err
	case look.Source == algo.ByPolicy:
		return algo.Decision{}, false, Unavailable(outage.ErrTimeout)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.waitingLocked() {
		return algo.Decision{}, false, nil
	}
	if now := s.Keys.Now(); s.known.fresh(now) {
		return s.behindLocked(n, now), true, nil
	}
	denyBehind(&look, s.line.came-s.line.gone, n)
	return look, true, nil
}

// orPolicy returns a result, or if Redis was unavailable, the policy's decision on n permits.
func (s *State) orPolicy(r algo.Decision, n int64, err error) (algo.Decision, error) {
	if !errors.Is(err, ErrUnavailable) {
		return r, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policyLocked(n, err)
}

// DecideToSettle is decide for n permits of which a settlement can give a part back. The spans are what Redis charged:
// one for each limit, or none if the decision is not one of Redis.
func (s *State) DecideToSettle(ctx context.Context, n int64) (algo.Decision, []algo.Span, error) {
	if err := s.begin(ctx); err != nil {
		return algo.Decision{}, nil, err
	}
	s.mu.Lock()
	waiting, now := s.waitingLocked(), s.Keys.Now()
	deny := s.deniedByMemoryLocked
	if waiting {
		deny = s.rememberedLocked // it must not overtake the waiters
	}
	denial, denied := deny(n, now)
	s.mu.Unlock()
	if denied {
		return denial, nil, nil
	}
	if err := s.refused(); err != nil {
		return s.decideByPolicy(n, err)
	}
	if n == 0 {
		r, err := s.Decide(ctx, 0)
		return r, nil, err
	}
	if waiting {
		if r, denied, err := s.behind(ctx, n); denied || err != nil {
			r, err = s.orPolicy(r, n, err)
			return r, nil, err
		}
	}
	return s.decideInRedis(ctx, n)
}

// decideByPolicy has the policy decide on a request that Redis did not answer because of err.
func (s *State) decideByPolicy(n int64, err error) (algo.Decision, []algo.Span, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.policyLocked(n, err)
	return r, nil, err
}

// decideInRedis sends a script for one request for n permits, which no other request shares.
func (s *State) decideInRedis(ctx context.Context, n int64) (algo.Decision, []algo.Span, error) {
	began := beginsToWait(ctx)
	j, err := s.ask(ctx, algo.ToSettle(n), algo.Settlement{}, true)
	if err == nil {
		r, err := told(&j.Got.Decisions[0])
		return r, j.Got.Spans, err
	}
	if err = s.outage(ctx, err, began); !errors.Is(err, ErrUnavailable) {
		return algo.Decision{}, nil, err
	}
	return s.decideByPolicy(n, err)
}

// outage returns the error of an ask that began at some time. If the deadline of ctx came while Redis did not answer,
// it matches errUnavailable.
func (s *State) outage(ctx context.Context, err error, began time.Time) error {
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil && s.Keys.ranOut(ctx, began) {
		return Unavailable(conventions.Cause(ctx))
	}
	return err
}

// abandon reports whether a caller could leave before its call was decided. A call that was not sent by then is
// never sent.
func (s *State) abandon(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-c.done:
		return false
	default:
		c.left = true
		return true
	}
}

// leastWait is the least time that a caller must give Redis before the caller's deadline counts as an outage: a
// shorter deadline must not lead to a grant by the policy.
const leastWait = 10 * time.Millisecond

// beginsToWait returns when a call of ctx begins to wait for Redis, for ranOut. A context without a deadline needs no
// look at the clock, which is 3 % of a decision on a hot key.
func beginsToWait(ctx context.Context) (began time.Time) {
	if _, ends := ctx.Deadline(); ends {
		began = conventions.Now()
	}
	return began
}

// ranOut reports whether ctx has ended by its deadline, and gave Redis leastWait since began. It compares the deadline
// itself, not the time at which this goroutine ran again: if that is much later, the process was paused, which is no
// outage of Redis.
func (c *Keys) ranOut(ctx context.Context, began time.Time) bool {
	end, ok := ctx.Deadline()
	if !ok || !errors.Is(conventions.Cause(ctx), context.DeadlineExceeded) {
		return false
	}
	return end.Sub(began) >= leastWait && conventions.Now().Sub(end) < max(c.Timeout/2, leastWait)
}

// gaveUp decides for a caller whose context has ended. If its deadline came while Redis did not answer, the
// policy decides.
func (s *State) gaveUp(ctx context.Context, n int64, began time.Time) (algo.Decision, error) {
	err := conventions.Cause(ctx)
	if !s.Keys.ranOut(ctx, began) {
		return algo.Decision{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policyLocked(n, Unavailable(err))
}

// joinLocked adds a call to the next job, and returns the job if it must be sent.
func (s *State) joinLocked(c *call) (*Job, error) {
	s.pending = append(s.pending, c)
	hurry := len(s.pending) >= secondScriptThreshold
	if s.queued != nil || s.inFlight > 0 && (s.inFlight == maxScripts || !hurry) {
		return nil, nil
	}
	j := s.newJobLocked(jobCalls, s.pending[0].since)
	if j == nil {
		s.pending = s.pending[:len(s.pending)-1]
		return nil, ErrClosed
	}
	s.inFlight++
	s.queued = j
	return j, nil
}

// nextLocked returns the next job of callers that do not wait, or nil if there are none, or a job is queued
// already.
func (s *State) nextLocked() *Job {
	s.answerPendingLocked(s.Keys.Now())
	if s.queued != nil || len(s.pending) == 0 {
		return nil
	}
	if s.queued = s.newJobLocked(jobCalls, s.pending[0].since); s.queued == nil {
		s.decideLocked(s.pending, nil, ErrClosed)
		s.pending = s.room[:0]
	}
	return s.queued
}

// answerPendingLocked decides the pending calls that need no script.
func (s *State) answerPendingLocked(now time.Duration) {
	s.pending = slices.DeleteFunc(s.pending, func(c *call) bool {
		if c.left {
			return true
		}
		r, ok := s.rememberedLocked(c.n, now)
		if ok {
			c.res = r
			c.done <- struct{}{}
		}
		return ok
	})
}

// policyLocked returns the policy's decision on a request that Redis did not answer because of err.
func (s *State) policyLocked(n int64, err error) (algo.Decision, error) {
	if !errors.Is(err, ErrUnavailable) {
		return algo.Decision{}, err
	}
	var d algo.Decision
	var decided bool
	if all, several := s.Algorithm.(*All); several {
		d, decided = s.Keys.Breakers.DecideAll(all.Combination, all.shares(), n)
	} else {
		limit, known := s.limitLocked()
		d, decided = s.Keys.Breakers.Decide(outage.Request{ID: s.ID.share(), N: n, Limit: limit}, known)
	}
	if !decided {
		return algo.Decision{Source: algo.ByPolicy}, err
	}
	d.Source = algo.ByPolicy
	for i := range d.Parts {
		d.Parts[i].Source = algo.ByPolicy
	}
	return d, nil
}

// refused returns the reason why Redis must not be asked for the key now, or nil.
func (s *State) refused() error {
	if cause := s.Keys.Breakers.Refuse(s); cause != nil {
		return Unavailable(cause)
	}
	return nil
}

// told returns the decision for a caller.
func told(d *algo.Decision) (algo.Decision, error) {
	if d.Exceeds {
		return algo.Decision{}, ErrExceedsLimit
	}
	return *d, nil
}

// decideLocked gives calls the answer if err is nil, and else the policy's.
func (s *State) decideLocked(calls []*call, got *algo.Answer, err error) {
	for i, c := range calls {
		switch {
		case c.left:
			continue
		case errors.Is(err, ErrUnavailable):
			c.res, c.err = s.policyLocked(c.n, err)
		case err != nil:
			c.err = err
		default:
			c.res, c.err = told(&got.Decisions[i])
		}
		c.done <- struct{}{}
	}
}

// takeRoomLocked takes room for the decisions of a script, which may have hundreds of callers. The answer of a job that
// has expired gets none: expire may be about to leave it.
func (j *Job) takeRoomLocked() {
	if j.kind == jobCalls {
		j.Room = j.state.Keys.rooms.Get().(*[]algo.Decision)
	}
}

// leaveRoomLocked gives the room back when the callers have their decisions.
func (j *Job) leaveRoomLocked() {
	if j.Room == nil {
		return
	}
	if all := j.Got.Decisions; len(all) > 0 {
		clear(all)
		*j.Room = all
	}
	j.state.Keys.rooms.Put(j.Room)
	j.Room, j.Got.Decisions = nil, nil
}

// heard records the outcome of a call that was sent at sentAt. An error about a key is no outage of its node.
func (s *State) heard(err error, sentAt time.Time) {
	if errors.Is(err, ErrUnavailable) && !redisconn.Migrating(cause(err)) {
		s.Keys.Breakers.Unanswered(s, cause(err), sentAt)
	} else {
		s.Keys.Breakers.Answered(s, sentAt)
	}
}

// share identifies the key for the policy LocalShare.
func (id *ID) share() outage.ID {
	return outage.ID{Algorithm: id.Options.Algorithm, Key: id.Key}
}

// limitLocked returns the limit if it is known.
func (s *State) limitLocked() (algo.Limit, bool) {
	return s.Algorithm.LimitOf(s.known.Snapshot)
}
