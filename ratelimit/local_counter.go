package ratelimit

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	// lookUpEvery is how often the limit of the scope PerClient is looked up while it is used.
	lookUpEvery = time.Second
	// maxUnseen is how long such a limit without a keep-alive is kept to while Redis does not answer.
	maxUnseen = time.Hour
)

// localCounter counts for one limit of the scope PerClient. The count is the Client's alone, so it is kept in
// memory, and Redis is asked for the limit only: by the first caller after a pause, and in the background
// while callers come. It belongs to a keyState, whose mu guards it.
type localCounter struct {
	log       localLog
	keepAlive time.Duration
	seen      time.Time // when the limit was asked for that log has; zero if it is to be asked for first
	next      time.Time // before, no caller asks
	armed     bool      // an entry of the wheel asks at next, or is asking
	timer     wheel.Timer
	used      bool // since the limit was asked for: its keep-alive begins anew
}

// localLimit is what Redis says about a limit of the scope PerClient. As a snapshot it says nothing: the
// count is in memory.
type localLimit struct {
	rate                int64
	interval, keepAlive time.Duration
	overall             bool // it is not of that scope any more
}

// readLocalLimit reads rate, interval and keep-alive.
func readLocalLimit(r *replyReader) *localLimit {
	rate, interval, keepAlive := r.next(1, math.MaxInt64), r.next(1, math.MaxInt64), r.next(0, math.MaxInt64)
	return &localLimit{rate: rate, interval: millis(interval), keepAlive: millis(keepAlive)}
}

func (*localLimit) cachedDenial(int64, time.Duration) (Result, bool) { return Result{}, false }
func (*localLimit) wait(int64, time.Duration) time.Duration          { return 0 }
func (*localLimit) state() Result                                    { return Result{} }

// pause is how long the limit is good for before it is looked up again.
func (o *localCounter) pause() time.Duration {
	if o.keepAlive > 0 {
		return min(lookUpEvery, max(o.keepAlive/3, time.Millisecond))
	}
	return lookUpEvery
}

// stale reports whether the limit is not to be kept to any more even if Redis does not answer: by then it may
// be gone.
func (o *localCounter) stale(now time.Time) bool {
	most := maxUnseen
	if o.keepAlive > 0 {
		most = o.keepAlive
	}
	return o.seen.IsZero() || now.Sub(o.seen) > most
}

// serveStale reports whether the counter decides although Redis does not answer.
func (o *localCounter) serveStale(now time.Time) bool {
	if o == nil || o.stale(now) {
		return false
	}
	o.next = now.Add(o.pause())
	return true
}

// decide decides a request for n permits, which is denied in any case if others are before it.
func (o *localCounter) decide(at time.Duration, n int64, denied bool) (Result, error) {
	log := &o.log
	if n > log.rate {
		return Result{}, ErrExceedsLimit
	}
	o.used = o.used || n > 0
	r := Result{Limit: log.rate, Source: SourceLocal}
	if n > 0 && !denied {
		if s, ok := log.take(at, n); ok {
			r.Allowed, r.Granted, r.grant = true, n, []entry{{stamp: s}}
		}
	}
	left := log.left(at)
	r.Remaining, r.ResetAfter = max(0, left), log.reset(at)
	switch {
	case n == 0:
		r.Allowed = left > 0
	case !r.Allowed:
		if r.RetryAfter = log.from(at, n) - at; r.RetryAfter == 0 {
			r.RetryAfter = time.Millisecond // it may not overtake
		}
	}
	return r, nil
}

// charge enters a request of a waiter, if it can be served soon.
func (o *localCounter) charge(at time.Duration, n int64, ahead time.Duration) (span, bool) {
	s, ok := o.log.reserve(at, n, ahead)
	if !ok {
		return span{}, false
	}
	o.used = true
	return span{n: n, from: s.at, until: s.at, entry: entry{stamp: s}}, true
}

// takeBack removes charges, and reports whether any of them was still there.
func (o *localCounter) takeBack(at time.Duration, grants ...entry) (found bool) {
	for _, e := range grants {
		found = o.log.giveBack(at, e.stamp) || found
	}
	return found
}

// trustedLocked reports whether this process counts by itself, and sees to it that the limit is looked up in
// time.
func (s *keyState) trustedLocked(now time.Time) bool {
	o := s.local
	if o == nil || o.stale(now) || !o.armed && !now.Before(o.next) {
		return false
	}
	s.armLookUpLocked(now)
	return true
}

// armLookUpLocked has the limit looked up when it is time.
func (s *keyState) armLookUpLocked(now time.Time) {
	o := s.local
	if o.armed || s.client.gate.Closed() {
		return
	}
	s.refs.Add(1)
	var err error
	o.timer, err = wheelentry.AfterFunc(s.client.wheel, o.next.Sub(now), func(stopped error) {
		if stopped != nil {
			s.disarmLookUp(o)
			return
		}
		go s.lookUp(o)
	})
	if o.armed = err == nil; !o.armed { // the next caller asks
		s.refs.Add(-1)
	}
}

// disarmLookUp has the next caller look the limit up, as the wheel was stopped.
func (s *keyState) disarmLookUp(o *localCounter) {
	s.mu.Lock()
	o.armed = false
	s.mu.Unlock()
	s.release()
}

// lookUp asks for the limit, unless the count has begun anew since.
func (s *keyState) lookUp(o *localCounter) {
	defer s.release()
	c := s.client
	if c.enter() != nil {
		return
	}
	defer c.leave()
	s.mu.Lock()
	if s.local != o {
		s.mu.Unlock()
		return
	}
	used, rate, interval := o.used, o.log.rate, o.log.interval
	o.used = false
	s.mu.Unlock()

	sentAt := c.wheel.Now()
	err := c.breaker.refuse()
	var found *localLimit
	if err == nil {
		found, err = c.limitOf(s.id.key, used)
		c.breaker.heard(err, s)
	}
	s.mu.Lock()
	changed := false
	if s.local == o {
		now := c.wheel.Now()
		o.armed = false
		switch {
		case errors.Is(err, ErrUnavailable):
			if o.serveStale(now) && s.waitingLocked() {
				s.armLookUpLocked(now)
			}
		case err != nil:
			o.seen, changed = time.Time{}, true // let the next one find out
		default:
			s.learnLocked(found, sentAt)
			changed = found.overall || o.log.rate != rate || o.log.interval != interval
		}
	}
	var j *job
	if changed {
		j = s.kickLocked()
	}
	s.mu.Unlock()
	s.send(j)
}

// limitOf asks Redis for a limit, and has its keep-alive begin anew if it was used.
func (c *Client) limitOf(key string, used bool) (*localLimit, error) {
	ctx, cancel := c.wheel.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	reply, err := scripts.Integers(scripts.RateLimit.Run(ctx, c.rdb, []string{key}, flag(used)))
	r := replyReader{reply: reply}
	limit := readLocalLimit(&r)
	limit.overall = Scope(r.next(int64(Overall), int64(PerClient))) == Overall
	if err == nil {
		err = r.end()
	}
	if err != nil {
		return nil, explain(context.Background(), err)
	}
	return limit, nil
}

// learnLocked takes note of a limit that was asked for at the given time.
func (s *keyState) learnLocked(found *localLimit, sentAt time.Time) {
	if found.overall {
		if !sentAt.Before(s.changed) {
			s.local = nil
		}
		return
	}
	s.known = knowledge{}
	if s.local == nil {
		s.local = &localCounter{}
	}
	o := s.local
	newer := !sentAt.Before(s.changed) && !sentAt.Before(o.seen)
	if newer || o.log.rate == 0 {
		o.log.set(found.rate, found.interval)
		o.keepAlive = found.keepAlive
	}
	if newer {
		o.seen, o.next = sentAt, sentAt.Add(o.pause())
	}
	if s.waitingLocked() && !o.seen.IsZero() {
		s.armLookUpLocked(s.client.wheel.Now())
	}
}

// remembersLocallyLocked is for how long it is worth while to keep the count: until its log is empty, and the
// limit for some time more, for Redis may go down.
func (s *keyState) remembersLocallyLocked(now time.Time) time.Duration {
	c, o := s.client, s.local
	d := max(o.log.reset(c.since(now)), c.idleFor-now.Sub(o.seen))
	if d <= 0 && c.breaker.down.Load() && !o.stale(now) {
		return c.idleFor
	}
	return d
}
