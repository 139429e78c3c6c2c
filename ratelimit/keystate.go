package ratelimit

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"

	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"

	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
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
	res    Result
	err    error
	done   chan struct{} // buffered
}

func newCall() any { return &call{done: make(chan struct{}, 1)} }

// stateID identifies requests that are counted together: an algorithm with its options, and a Redis key.
type stateID struct {
	options limiterOptions
	key     string
}

// keyState collects the requests of this process for one key. For requests that do not wait, one script is in
// flight, and callers that arrive meanwhile join the next one. Requests that wait form a line; while it has
// waiters, the other requests are denied.
//
// mu guards every field below it. A snapshot is replaced only by one of a later request. Nothing blocks under
// mu: a job to send is returned, and sent after mu is unlocked. refs counts the callers, jobs and wheel entries
// that use the state. When the last of them is gone, the state is dropped, unless it remembers something.
type keyState struct {
	client    *Client
	algorithm algo.Algorithm
	id        stateID
	shard     *stateShard
	refs      atomic.Int64
	retention wheel.Timer // keeps the state while only its memory is of use; the shard's mu guards it

	mu       sync.Mutex
	inFlight int      // jobs of callers that do not wait
	queued   *job     // the one that was not sent yet: it takes the pending calls
	pending  []*call  // in order of arrival
	room     [1]*call // for pending
	known    knowledge
	changed  time.Time     // when this Client last changed the limit or the count; earlier denials are void
	freedAt  time.Time     // when it last gave permits back; earlier denials are void
	line     *line         // nil before the first waiter
	timer    wheel.Timer   // of the line
	timerAt  time.Duration // the time of timer, if armed
	armed    bool
}

// states are the keyStates of a Client.
type states struct {
	seed   maphash.Seed
	shards [64]stateShard
}

type stateShard struct {
	mu     sync.Mutex
	states map[stateID]*keyState // guarded by mu
	counts counters
}

func (s *states) shard(key string) *stateShard {
	return &s.shards[maphash.String(s.seed, key)%uint64(len(s.shards))]
}

// useKey is use for a key in bytes. It makes no string if the state exists.
func (c *Client) useKey(options limiterOptions, key []byte, a algo.Algorithm) *keyState {
	shard := &c.states.shards[maphash.Bytes(c.states.seed, key)%uint64(len(c.states.shards))]
	shard.mu.Lock()
	s := shard.states[stateID{options, string(key)}] // the compiler makes no string for a map lookup
	if s != nil {
		s.refs.Add(1)
	}
	shard.mu.Unlock()
	if s == nil {
		s = c.use(stateID{options, string(key)}, a)
	}
	return s
}

// use returns the state of a key, which stays until release. Without an algorithm it is a log.
func (c *Client) use(id stateID, a algo.Algorithm) *keyState {
	shard := c.states.shard(id.key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	s := shard.states[id]
	if s == nil {
		if a == nil {
			a = algo.NewLog(c.id)
		}
		s = &keyState{client: c, algorithm: a, id: id, shard: shard}
		s.pending = s.room[:0]
		if shard.states == nil {
			shard.states = map[stateID]*keyState{}
		}
		shard.states[id] = s
	}
	s.refs.Add(1)
	return s
}

// hold is use for a caller whose state is not released yet.
func (s *keyState) hold() { s.refs.Add(1) }

func (s *keyState) release() {
	if s.refs.Add(-1) > 0 {
		return
	}
	shard := s.shard
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if s.refs.Load() > 0 || shard.states[s.id] != s {
		return
	}
	if d := s.remembers(); d > 0 && !s.client.gate.Closed() {
		s.refs.Add(1)
		var err error
		if s.retention, err = wheelentry.AfterFunc(s.client.wheel, d, func(error) { s.release() }); err == nil {
			return
		}
		s.refs.Add(-1)
	}
	delete(shard.states, s.id)
}

// remembers returns how long the state can still decide from memory.
func (s *keyState) remembers() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.client.now()
	if s.known.snapshot == nil {
		return 0
	}
	if d := s.known.snapshot.Keep(at, s.client.breakers.Refuse(s) != nil); d > 0 {
		return d
	}
	if !s.known.fresh(at) {
		return 0
	}
	passed := at - s.known.sent
	d, denied := s.known.snapshot.CachedDenial(1, passed)
	if !denied {
		return 0
	}
	return min(d.RetryAfter, maxDenyFor-passed)
}

// waitingLocked reports whether there are waiters in line.
func (s *keyState) waitingLocked() bool { return s.line != nil && s.line.first != nil }

// rememberedLocked decides from memory: by permits that waiters have left, or by the last answer of Redis. now
// is the time by the Client's clock.
func (s *keyState) rememberedLocked(n int64, now time.Duration) (Result, bool) {
	waiting := s.waitingLocked()
	if n == 0 || s.known.snapshot == nil {
		return Result{}, false
	}
	if waiting {
		if !s.known.fresh(now) || s.client.breakers.Refuse(s) != nil {
			return Result{}, false
		}
		return s.behindLocked(n, now), true
	}
	if s.line != nil && s.useCharged(&s.line.charged, n, now) {
		r := Result{Allowed: true, Granted: n, Source: SourceLocal}
		if limit, ok := s.algorithm.LimitOf(s.known.snapshot); ok {
			r.Limit = limit.Burst
		}
		return r, true
	}
	return s.deniedByMemoryLocked(n, now)
}

// deniedByMemoryLocked denies n permits by the last answer of Redis.
func (s *keyState) deniedByMemoryLocked(n int64, now time.Duration) (r Result, denied bool) {
	if n == 0 || s.known.snapshot == nil || !s.known.fresh(now) {
		return r, false
	}
	d, denied := s.known.snapshot.CachedDenial(n, now-s.known.sent)
	if denied {
		r.set(&d)
		s.deniedLocked(&r)
	}
	return r, denied
}

// behindLocked returns the denial of n permits because waiters are ahead, which a call must not overtake. What is known
// is fresh.
func (s *keyState) behindLocked(n int64, now time.Duration) Result {
	passed, ahead := now-s.known.sent, s.line.came-s.line.gone
	wait := s.known.wait(ahead+n, now)
	d, denied := s.known.snapshot.CachedDenial(n, passed)
	if !denied {
		d = s.known.snapshot.State()
		d.ResetAfter = max(0, d.ResetAfter-passed)
	}
	d.RetryAfter = max(d.RetryAfter, wait)
	r := resultOf(&d)
	r.behind(ahead, n)
	s.deniedLocked(&r)
	return r
}

// behind makes a look at the state the denial of n permits behind others that wait for ahead permits.
func (r *Result) behind(ahead, n int64) {
	if r.Allowed = false; r.RetryAfter == 0 && ahead+n > r.Remaining {
		r.RetryAfter = r.ResetAfter // no earlier time is known
	}
	r.RetryAfter = max(r.RetryAfter, time.Millisecond)
	r.Remaining = max(0, r.Remaining-ahead)
}

// useCharged takes n prepaid permits, if they can be used now.
func (s *keyState) useCharged(c *charged, n int64, now time.Duration) bool {
	if c.n < n || c.whole() {
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
	c.use(n)
	return true
}

// deniedLocked marks a denial as local. Redis may have read its clock just before it answered, so the time in
// which the caller comes back counts from the reply.
func (s *keyState) deniedLocked(r *Result) {
	r.RetryAfter += s.known.took
	r.Source = SourceLocal
}

// mark returns the number of permits that were ever charged for the line. It is called before this process
// changes the key in Redis: these permits belong to the old state.
func (s *keyState) mark() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line == nil {
		return 0
	}
	return s.line.charged.added
}

// changedLocked is called when this process has changed the key. It drops the permits before the mark, and voids
// denials of Redis up to now, in-flight replies included. It keeps later permits, and those of in-flight replies:
// Redis may have charged them to the new state, which would lack them until the limit grants again.
func (s *keyState) changedLocked(old int64) {
	s.changed = s.client.wheel.Now()
	s.known = knowledge{}
	if s.line != nil {
		s.line.charged.dropUntil(old)
	}
}

// kickLocked makes the line ask as soon as what is known allows it.
func (s *keyState) kickLocked() *job {
	if s.line == nil {
		return nil
	}
	s.line.anew()
	return s.pumpLocked(s.client.now())
}

// Question implements outage.Key: the script of decisions on the key, without requests. It charges nothing and writes
// the state of the key back as it is. So it needs only the rights of decisions, and fails where they would.
func (s *keyState) Question() redisconn.Question {
	return func(ctx context.Context, c scripts.Client) error {
		ask := func() error {
			call := s.algorithm.Encode(s.id.key, &algo.Ask{})
			return call.Script.RunOnce(ctx, c, call.Keys, call.Args...).Err()
		}
		err := ask()
		if s.algorithm.Follow(err) {
			err = ask()
		}
		return err
	}
}

// Route implements outage.Key.
func (s *keyState) Route() string { return s.algorithm.Route(s.id.key) }
