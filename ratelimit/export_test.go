package ratelimit

import (
	"strings"
	"time"
)

// GCRAParams gives the tests the arithmetic of GCRA.
type GCRAParams struct{ p gcraParams }

// GCRATime is a state.
type GCRATime = gcraTime

func NewGCRAParams(l Limit) GCRAParams                                { return GCRAParams{newGCRAParams(l)} }
func (p GCRAParams) Den() int64                                       { return p.p.den }
func (p GCRAParams) Take(tat GCRATime, now, n int64) (GCRATime, bool) { return p.p.take(tat, now, n) }

func (p GCRAParams) Delay(tat GCRATime, now, n int64) time.Duration { return p.p.delay(tat, now, n) }

func (p GCRAParams) Remaining(tat GCRATime, now int64) int64 { return p.p.remaining(tat, now) }
func (t gcraTime) Parts() (us, num int64)                    { return t.us, t.num }
func Member(id [16]byte, n int64) string                     { return member(id, n) }
func LogKeys(name string) []string                           { return logKeys(name) }

func RedisKey(prefix, key string, a Algorithm) string { return redisKey(prefix, "", key, a) }

func TaggedKey(prefix, tag, key string, a Algorithm) string { return redisKey(prefix, tag, key, a) }

// Kept is how many keys and senders the client has in memory.
func Kept(c *Client) (keys, routes int) {
	return c.remembered(func(stateID) bool { return true }), c.senders.lines.Len()
}

// Shares is how many keys the client counts by the policy LocalShare.
func Shares(c *Client) int {
	s := &c.breaker.share
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.keys)
}

// States is how many keys of a Keyed the process remembers.
func States(k *Keyed) int {
	return k.client.remembered(func(id stateID) bool { return id.options == k.options && strings.HasPrefix(id.key, k.prefix+":{") })
}

// Names is how many limiters the client remembers.
func Names(c *Client) int {
	return c.remembered(func(id stateID) bool { return id.options.algorithm == logAlgorithm })
}

func (c *Client) remembered(which func(stateID) bool) (n int) {
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

// MemoryLog gives the tests the log of the scope PerClient.
type MemoryLog struct{ m localLog }

// Stamp is what an entry of a MemoryLog is found by.
type Stamp = stamp

func NewMemoryLog(rate int64, interval time.Duration) *MemoryLog {
	l := &MemoryLog{}
	l.m.set(rate, interval)
	return l
}
func (l *MemoryLog) Set(rate int64, interval time.Duration)            { l.m.set(rate, interval) }
func (l *MemoryLog) Left(now time.Duration) int64                      { return l.m.left(now) }
func (l *MemoryLog) From(now time.Duration, n int64) time.Duration     { return l.m.from(now, n) }
func (l *MemoryLog) Wait(now time.Duration, total int64) time.Duration { return l.m.wait(now, total) }
func (l *MemoryLog) Reset(now time.Duration) time.Duration             { return l.m.reset(now) }
func (l *MemoryLog) Take(now time.Duration, n int64) (Stamp, bool)     { return l.m.take(now, n) }
func (l *MemoryLog) GiveBack(now time.Duration, s Stamp) bool          { return l.m.giveBack(now, s) }
func (l *MemoryLog) Cap() int                                          { return cap(l.m.entries) }
func (l *MemoryLog) Reserve(now time.Duration, n int64, ahead time.Duration) (Stamp, bool) {
	return l.m.reserve(now, n, ahead)
}

// Forgetful has the client forget limits that are not used for d. It must be called first.
func Forgetful(c *Client, d time.Duration) *Client {
	c.idleFor = d
	return c
}
