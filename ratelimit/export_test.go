package ratelimit

import "time"

// Pace gives the tests the arithmetic of GCRA.
type Pace struct{ p pace }

// Mark is a state of a Pace.
type Mark = mark

func NewPace(l Limit) Pace                                { return Pace{newPace(l)} }
func (p Pace) Den() int64                                 { return p.p.den }
func (p Pace) Take(tat Mark, now, n int64) (Mark, bool)   { return p.p.take(tat, now, n) }
func (p Pace) Delay(tat Mark, now, n int64) time.Duration { return p.p.delay(tat, now, n) }
func (p Pace) Remaining(tat Mark, now int64) int64        { return p.p.remaining(tat, now) }
func (m mark) Parts() (us, num int64)                     { return m.us, m.num }
func Member(id [16]byte, n int64) string                  { return member(id, n) }
func LogKeys(c *Client, name string) []string             { return c.logKeys(name) }
func Lanes(k *Keyed) (n int) {
	for i := range k.registry.shards {
		s := &k.registry.shards[i]
		s.mu.Lock()
		n += len(s.lanes)
		s.mu.Unlock()
	}
	return n
}
