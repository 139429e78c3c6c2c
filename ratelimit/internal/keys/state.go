package keys

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	maxBatch   = 256 // callers in one script
	maxScripts = 2   // in flight for one key and callers that do not wait, and for one node and all keys
	// maxDenyFor is how long an answer of Redis is trusted: another process may give permits back or raise the
	// limit.
	maxDenyFor = time.Second
	// secondScriptThreshold is the number of callers that do not wait for the script in flight but get a second
	// script. Fewer callers cost the server less in the next script.
	secondScriptThreshold = 28
)

// call is one request for n permits that does not wait for them.
type call struct {
	n      int64
	since  time.Duration   // arrival
	values context.Context //nolint:containedctx // the caller's, for hooks of the redis client
	left   bool            // the caller has left
	res    algo.Decision
	err    error
	done   chan struct{} // buffered
}

func newCall() any { return &call{done: make(chan struct{}, 1)} }

// State collects the requests of this process for one key. For requests that do not wait, one script is in
// flight, and callers that arrive meanwhile join the next one. Requests that wait form a line; while it has
// waiters, the other requests are denied.
//
// mu guards every field below it. A snapshot is replaced only by one of a later request. Nothing blocks under
// mu: a job to send is returned, and sent after mu is unlocked. refs counts the callers, jobs and wheel entries
// that use the state. When the last of them is gone, the state is dropped, unless it remembers something.
type State struct {
	Keys      *Keys
	Algorithm algo.Algorithm
	ID        ID
	shard     *stateShard
	refs      atomic.Int64
	retention wheel.Timer // keeps the state while only its memory is of use; the shard's mu guards it

	mu       sync.Mutex
	inFlight int      // jobs of callers that do not wait
	queued   *Job     // the one that was not sent yet: it takes the pending calls
	pending  []*call  // in order of arrival
	room     [1]*call // for pending
	known    Knowledge
	changed  time.Time     // when this Client last changed the limit or the count; earlier denials are void
	freedAt  time.Time     // when it last gave permits back; earlier denials are void
	line     *Line         // nil before the first waiter
	timer    wheel.Timer   // of the line
	timerAt  time.Duration // the time of timer, if armed
	armed    bool
}

// waitingLocked reports whether there are waiters in line.
func (s *State) waitingLocked() bool { return s.line != nil && s.line.first != nil }

// rememberedLocked decides from memory: by permits that waiters have left, or by the last answer of Redis. now
// is the time by the Client's clock.
func (s *State) rememberedLocked(n int64, now time.Duration) (algo.Decision, bool) {
	waiting := s.waitingLocked()
	if n == 0 || s.known.Snapshot == nil {
		return algo.Decision{}, false
	}
	if waiting {
		if !s.known.fresh(now) || s.Keys.Breakers.Refuse(s) != nil {
			return algo.Decision{}, false
		}
		return s.behindLocked(n, now), true
	}
	if s.line != nil && s.useCharged(&s.line.Charged, n, now) {
		r := algo.Decision{Allowed: true, Granted: n, Source: algo.ByProcess}
		if limit, ok := s.Algorithm.LimitOf(s.known.Snapshot); ok {
			r.Limit = limit.Burst
		}
		return r, true
	}
	return s.deniedByMemoryLocked(n, now)
}

// deniedByMemoryLocked denies n permits by the last answer of Redis.
func (s *State) deniedByMemoryLocked(n int64, now time.Duration) (r algo.Decision, denied bool) {
	if n == 0 || s.known.Snapshot == nil || !s.known.fresh(now) {
		return r, false
	}
	if r, denied = s.known.Snapshot.CachedDenial(n, now-s.known.Sent); denied {
		s.deniedLocked(&r)
	}
	return r, denied
}

// behindLocked returns the denial of n permits because waiters are ahead, which a call must not overtake. What is known
// is fresh.
func (s *State) behindLocked(n int64, now time.Duration) algo.Decision {
	passed, ahead := now-s.known.Sent, s.line.came-s.line.gone
	wait := s.known.Wait(ahead+n, now)
	d, denied := s.known.Snapshot.CachedDenial(n, passed)
	if !denied {
		d = s.known.Snapshot.State()
		d.ResetAfter = max(0, d.ResetAfter-passed)
	}
	d.RetryAfter = max(d.RetryAfter, wait)
	denyBehind(&d, ahead, n)
	s.deniedLocked(&d)
	return d
}

// denyBehind makes a look at the state the denial of n permits behind others that wait for ahead permits.
func denyBehind(r *algo.Decision, ahead, n int64) {
	if r.Allowed = false; r.RetryAfter == 0 && ahead+n > r.Remaining {
		r.RetryAfter = r.ResetAfter // no earlier time is known
	}
	r.RetryAfter = max(r.RetryAfter, time.Millisecond)
	r.Remaining = max(0, r.Remaining-ahead)
}

// useCharged takes n prepaid permits, if they can be used now.
func (s *State) useCharged(c *charged, n int64, now time.Duration) bool {
	if c.N < n || c.whole() {
		return false
	}
	if c.reserves() {
		i := c.place(n)
		if i < 0 {
			return false
		}
		at, late := c.placeAt(&c.spans[i])
		if at > now || late < now || c.spans[i].At.NotAfter(c.spans[i].Start.Micros) < now {
			return false
		}
		c.leavePlace(i, false)
		return true
	}
	if at, missing := c.ready(n, now); missing > 0 || at > now {
		return false
	}
	c.Use(n)
	return true
}

// deniedLocked marks a denial as local. Redis may have read its clock just before it answered, so the time in
// which the caller comes back counts from the reply.
func (s *State) deniedLocked(r *algo.Decision) {
	r.RetryAfter += s.known.Took
	r.Source = algo.ByProcess
}

// Mark returns the number of permits that were ever charged for the line. It is called before this process
// changes the key in Redis: these permits belong to the old state.
func (s *State) Mark() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line == nil {
		return 0
	}
	return s.line.Charged.added
}

// changedLocked is called when this process has changed the key. It drops the permits before the mark, and voids
// denials of Redis up to now, in-flight replies included. It keeps later permits, and those of in-flight replies:
// Redis may have charged them to the new state, which would lack them until the limit grants again.
func (s *State) changedLocked(old int64) {
	s.changed = s.Keys.Wheel.Now()
	s.known = Knowledge{}
	if s.line != nil {
		s.line.Charged.dropUntil(old)
	}
}

// kickLocked makes the line ask soon, at most once in lookPeriod.
func (s *State) kickLocked() *Job {
	if s.line == nil {
		return nil
	}
	s.line.anew()
	return s.pumpLocked(s.Keys.Now())
}

// Question implements outage.Key: the script of decisions on the key, without requests. It charges nothing and writes
// the state of the key back as it is. So it needs only the rights of decisions, and fails where they would.
func (s *State) Question() redisconn.Question {
	return func(ctx context.Context, c scripts.Client) error {
		ask := func() error {
			call := s.Algorithm.Encode(s.ID.Key, &algo.Ask{})
			return call.Script.RunOnce(ctx, c, call.Keys, call.Args...).Err()
		}
		err := ask()
		if s.Algorithm.Follow(err) {
			err = ask()
		}
		return err
	}
}

// Route implements outage.Key.
func (s *State) Route() string { return s.Algorithm.Route(s.ID.Key) }
