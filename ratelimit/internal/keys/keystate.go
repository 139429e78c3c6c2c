package keys

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/client"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/histogram"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/outage"
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

// Options are what requests for a key have in common that are counted together.
type Options struct {
	Limit     algo.Limit
	Algorithm uint8  // a ratelimit.Algorithm, or another number
	HashTag   string // none: each key has its own
}

// ID identifies requests that are counted together: an algorithm with its options, and a Redis key.
type ID struct {
	Options Options
	Key     string
}

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

// Config has the parts of a Client that its keys use.
type Config struct {
	ID       string // part of the keys of limits with the scope PerClient
	Wheel    *wheel.Wheel
	Clock    client.Clock
	Timeout  time.Duration
	Patience time.Duration // the time for an answer of Redis: Timeout, or a shorter ReadTimeout
	Sender   *calls.Sender
	Breakers *outage.Breakers
	Gate     *gate.Gate // counts the operations that may talk to Redis
}

// Keys is what a Client knows of its keys.
type Keys struct {
	Config
	states  states
	calls   sync.Pool // of *call; one per Client, because a channel belongs to the synctest bubble that made it
	Scripts atomic.Int64
	Waiting atomic.Int64
	Took    histogram.Recorder // how long scripts took
}

// New returns the Keys of a Client.
func New(cfg Config) *Keys {
	c := &Keys{Config: cfg}
	c.calls.New = newCall
	c.states.seed = maphash.MakeSeed()
	return c
}

// Now returns the time by the clock of the Client.
func (c *Keys) Now() time.Duration { return c.Clock.Now() }

// Enter counts an operation that may talk to Redis, until Leave.
func (c *Keys) Enter() error {
	if !c.Gate.Enter() {
		return ErrClosed
	}
	return nil
}

// Leave ends what Enter has begun.
func (c *Keys) Leave() { c.Gate.Leave() }

// states are the States of a Client, by their IDs.
type states struct {
	seed   maphash.Seed
	shards [64]stateShard
}

type stateShard struct {
	mu     sync.Mutex
	states map[ID]*State // guarded by mu
	counts Counters
}

// Counters count the calls for some keys. A decision costs one addition, because there are tens of millions of
// them a second when keys are exhausted.
type Counters struct {
	Decided   [4][2]atomic.Int64 // by Source, denied and allowed
	Shadow    atomic.Int64       // those of decided that were denied under WithShadow
	Failed    atomic.Int64       // without cancelled
	Degraded  atomic.Int64       // those of failed that the policy decided
	Cancelled atomic.Int64
}

func (s *states) shard(key string) *stateShard {
	return &s.shards[maphash.String(s.seed, key)%uint64(len(s.shards))]
}

// UseKey is use for a key in bytes. It makes no string if the state exists.
func (c *Keys) UseKey(options Options, key []byte, a algo.Algorithm) *State {
	shard := &c.states.shards[maphash.Bytes(c.states.seed, key)%uint64(len(c.states.shards))]
	shard.mu.Lock()
	s := shard.states[ID{options, string(key)}] // the compiler makes no string for a map lookup
	if s != nil {
		s.refs.Add(1)
	}
	shard.mu.Unlock()
	if s == nil {
		s = c.Use(ID{options, string(key)}, a)
	}
	return s
}

// Use returns the state of a key, which stays until release. Without an algorithm it is a log.
func (c *Keys) Use(id ID, a algo.Algorithm) *State {
	shard := c.states.shard(id.Key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	s := shard.states[id]
	if s == nil {
		if a == nil {
			a = algo.NewLog(c.ID)
		}
		s = &State{Keys: c, Algorithm: a, ID: id, shard: shard}
		s.pending = s.room[:0]
		if shard.states == nil {
			shard.states = map[ID]*State{}
		}
		shard.states[id] = s
	}
	s.refs.Add(1)
	return s
}

// Hold is use for a caller whose state is not released yet.
func (s *State) Hold() { s.refs.Add(1) }

// Release ends the use of the state.
func (s *State) Release() {
	if s.refs.Add(-1) > 0 {
		return
	}
	shard := s.shard
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if s.refs.Load() > 0 || shard.states[s.ID] != s {
		return
	}
	if d := s.remembers(); d > 0 && !s.Keys.Gate.Closed() {
		s.refs.Add(1)
		var err error
		if s.retention, err = wheelentry.AfterFunc(s.Keys.Wheel, d, func(error) { s.Release() }); err == nil {
			return
		}
		s.refs.Add(-1)
	}
	delete(shard.states, s.ID)
}

// remembers returns how long the state can still decide from memory.
func (s *State) remembers() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.Keys.Now()
	if s.known.Snapshot == nil {
		return 0
	}
	if d := s.known.Snapshot.Keep(at, s.Keys.Breakers.Refuse(s) != nil); d > 0 {
		return d
	}
	if !s.known.fresh(at) {
		return 0
	}
	passed := at - s.known.Sent
	d, denied := s.known.Snapshot.CachedDenial(1, passed)
	if !denied {
		return 0
	}
	return min(d.RetryAfter, maxDenyFor-passed)
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

// EndWaits ends the waits of a Client whose gate is closed, and removes the wheel entries of its keys.
func (c *Keys) EndWaits() {
	for i := range c.states.shards {
		c.states.shards[i].close()
	}
}

// Forget forgets the last known states of all keys.
func (c *Keys) Forget() {
	for i := range c.states.shards {
		c.states.shards[i].forgetAll()
	}
}

// forgetAll forgets the last known states of all keys.
func (s *stateShard) forgetAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.states)
}

// close ends the waits and removes the wheel entries of the states. The gate is closed, so the states add no
// more.
func (s *stateShard) close() {
	s.mu.Lock()
	var states, unused []*State
	for _, state := range s.states {
		states = append(states, state)
		if state.retention.Stop() {
			unused = append(unused, state)
		}
	}
	s.mu.Unlock()
	for _, state := range states {
		state.mu.Lock()
		var j *Job
		if state.line != nil {
			state.line.finishAll(state.Keys.Now(), ErrClosed)
			j = state.leavePlacesLocked()
		}
		if state.armed && state.timer.Stop() {
			state.armed = false
			unused = append(unused, state)
		}
		state.mu.Unlock()
		state.Send(j)
	}
	for _, state := range unused {
		state.Release()
	}
}

// Count counts the keys in memory of which something is true.
func (c *Keys) Count(which func(ID) bool) (n int) {
	for i := range c.states.shards {
		s := &c.states.shards[i]
		s.mu.Lock()
		for id := range s.states {
			if which(id) {
				n++
			}
		}
		s.mu.Unlock()
	}
	return n
}

// AllCounts yields the counts of all keys.
func (c *Keys) AllCounts(yield func(*Counters) bool) {
	for i := range c.states.shards {
		if !yield(&c.states.shards[i].counts) {
			return
		}
	}
}

// CountsOf returns where calls about a key count; nil is no key.
func (c *Keys) CountsOf(s *State) *Counters {
	if s == nil {
		return &c.states.shards[0].counts
	}
	return &s.shard.counts
}

// UnderWay returns how many keys have a script in flight for calls that do not wait.
func (c *Keys) UnderWay() (n int) {
	for i := range c.states.shards {
		s := &c.states.shards[i]
		s.mu.Lock()
		for _, state := range s.states {
			state.mu.Lock()
			if state.inFlight > 0 {
				n++
			}
			state.mu.Unlock()
		}
		s.mu.Unlock()
	}
	return n
}
