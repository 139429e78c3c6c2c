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

// States is how many keys of a Limiter the process remembers.
func States(k *Limiter) int {
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
