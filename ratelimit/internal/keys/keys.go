package keys

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/client"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/histogram"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/outage"
	"github.com/cogwheel-go/cogwheel/wheel"
)

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
	rooms   sync.Pool // of *[]algo.Decision, for the decisions of one script
	calls   sync.Pool // of *call; one per Client, because a channel belongs to the synctest bubble that made it
	Scripts atomic.Int64
	Waiting atomic.Int64
	Took    histogram.Recorder // how long scripts took
}

// New returns the Keys of a Client.
func New(cfg Config) *Keys {
	c := &Keys{Config: cfg}
	c.calls.New = newCall
	c.rooms.New = func() any { return new([]algo.Decision) }
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

// Hold uses the state once more. Its caller uses it already.
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
