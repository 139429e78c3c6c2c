package ratelimit

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	maxBatch   = 256 // callers in one script
	maxScripts = 2   // of one key under way for callers that do not wait, and of one node for all keys
	// maxDenyFor is how long an answer of Redis is trusted: another process may give permits back or raise
	// the limit.
	maxDenyFor = time.Second
	// secondScriptThreshold is how many callers do not wait for the script that is under way but have one of
	// their own. Fewer cost the server less in the next one.
	secondScriptThreshold = 28
)

// call is one request for n permits of a caller that does not wait for them.
type call struct {
	n    int64
	res  Result
	err  error
	done chan struct{} // buffered
}

func newCall() any { return &call{done: make(chan struct{}, 1)} }

// stateID is what requests have in common that are counted together: an algorithm and its options, and a key
// of Redis.
type stateID struct {
	options limiterOptions
	key     string
}

// keyState is where the requests of this process for one key meet. Of those that do not wait one script is
// under way, and callers that arrive meanwhile join the next one. Those that wait stand in a line; while
// there are any, the others are denied without a script. Scripts travel by a sender, which keys of one node
// share.
//
// mu guards every field below it. A snapshot is replaced by one that was asked for later only. Nothing that
// blocks runs under mu; what is to be sent is returned as a job and sent after it. refs counts callers, jobs
// and entries of the wheel that use the state: when the last of them is gone, it is forgotten, unless it
// remembers something.
type keyState struct {
	client    *Client
	algorithm algorithm
	id        stateID
	shard     *stateShard
	out       *sender
	refs      atomic.Int64
	retention wheel.Timer // while nothing but what it remembers keeps it; the shard's mu guards it

	mu           sync.Mutex
	inFlight     int           // jobs of callers that do not wait
	pending      []*call       // of the next job
	pendingSince time.Duration // when the first of them came
	known        knowledge
	changed      time.Time     // when this Client last changed the limit or the count; earlier denials are void
	freedAt      time.Time     // when it last gave permits back; earlier denials are void
	line         *line         // nil if there never was a waiter
	timer        wheel.Timer   // of the line
	timerAt      time.Duration // when it fires, if it is armed
	armed        bool
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

// useKey is use for a key that need not be a string: there is none to make if the state is there already.
func (c *Client) useKey(options limiterOptions, key []byte, a algorithm, out *sender) *keyState {
	shard := &c.states.shards[maphash.Bytes(c.states.seed, key)%uint64(len(c.states.shards))]
	shard.mu.Lock()
	s := shard.states[stateID{options, string(key)}] // the compiler makes no string for a look into a map
	if s != nil {
		s.refs.Add(1)
	}
	shard.mu.Unlock()
	if s == nil {
		s = c.use(stateID{options, string(key)}, a, out)
	}
	return s
}

// use returns the state of a key, which stays until release. Without an algorithm it is a log; without a sender
// it is sent by the sender of the key.
func (c *Client) use(id stateID, a algorithm, out *sender) *keyState {
	shard := c.states.shard(id.key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	s := shard.states[id]
	if s == nil {
		if a == nil {
			a = &slidingLog{client: c}
		}
		if out == nil {
			out = c.senders.of(a.script(), id.key)
		}
		s = &keyState{client: c, algorithm: a, id: id, shard: shard, out: out}
		if shard.states == nil {
			shard.states = map[stateID]*keyState{}
		}
		shard.states[id] = s
	}
	s.refs.Add(1)
	return s
}

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

// remembers is for how long the state can still answer by itself.
func (s *keyState) remembers() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.client.wheel.Now()
	if known, ok := s.known.snapshot.(*logSnapshot); ok {
		d := time.Until(known.counted.Add(recount))
		if d <= 0 && s.client.breaker.down.Load() {
			return recount // LocalShare needs the limit
		}
		return d
	}
	at := s.client.since(now)
	if !s.known.fresh(at) {
		return 0
	}
	passed := at - s.known.sent
	r, denied := s.known.snapshot.cachedDenial(1, passed)
	if !denied {
		return 0
	}
	return min(r.RetryAfter, maxDenyFor-passed)
}

// waitingLocked reports whether there are waiters in line.
func (s *keyState) waitingLocked() bool { return s.line != nil && s.line.first != nil }

// rememberedLocked answers from memory: from permits that waiters have left, or by the last answer of Redis. now
// is the time by the Client's clock.
func (s *keyState) rememberedLocked(n int64, now time.Duration) (Result, bool) {
	waiting := s.waitingLocked()
	if n == 0 || s.known.snapshot == nil && !waiting {
		return Result{}, false
	}
	if waiting {
		// It may not overtake.
		if s.known.snapshot != nil {
			if r, denied := s.known.snapshot.cachedDenial(n, now-s.known.sent); denied {
				return s.deniedLocked(r), true
			}
		}
		return Result{RetryAfter: time.Millisecond, Source: SourceLocal}, true
	}
	if s.line != nil && s.useCharged(&s.line.charged, n, now) {
		r := Result{Allowed: true, Granted: n, Source: SourceLocal}
		if limit, ok := s.algorithm.limitOf(s.known.snapshot); ok {
			r.Limit = limit.Burst
		}
		return r, true
	}
	if !s.known.fresh(now) {
		return Result{}, false
	}
	r, denied := s.known.snapshot.cachedDenial(n, now-s.known.sent)
	return s.deniedLocked(r), denied
}

// useCharged takes n permits that are charged already, if they can be used now.
func (s *keyState) useCharged(c *charged, n int64, now time.Duration) bool {
	if c.n < n || c.whole() {
		return false
	}
	if at, missing := c.ready(n, now); missing > 0 || at > now {
		return false
	}
	c.use(n)
	return true
}

// deniedLocked marks a denial. Redis may have looked at its clock as late as just before it answered: a
// caller that comes back must not count from earlier.
func (s *keyState) deniedLocked(r Result) Result {
	r.RetryAfter += s.known.took
	r.Source = SourceLocal
	return r
}

// mark returns how many permits the line was ever charged. It is called before this process changes the key in
// Redis: these permits are of the old state.
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

// kickLocked has the line look at once.
func (s *keyState) kickLocked() *job {
	if s.line == nil {
		return nil
	}
	s.known = knowledge{}
	s.line.retryAt = 0
	return s.pumpLocked(s.client.now())
}
