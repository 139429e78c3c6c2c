package ratelimit

import (
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// GCRAParams gives the tests the arithmetic of GCRA.
type GCRAParams struct{ p gcraParams }

// GCRATime is a state.
type GCRATime = gcraTime

func NewGCRAParams(l Limit) GCRAParams                                { return GCRAParams{newGCRAParams(algoLimit(l))} }
func (p GCRAParams) Den() int64                                       { return p.p.den }
func (p GCRAParams) Take(tat GCRATime, now, n int64) (GCRATime, bool) { return p.p.take(tat, now, n) }

func (p GCRAParams) Delay(tat GCRATime, now, n int64) time.Duration { return p.p.delay(tat, now, n) }

func (p GCRAParams) Remaining(tat GCRATime, now int64) int64 { return p.p.remaining(tat, now) }
func (t gcraTime) Parts() (us, num int64)                    { return t.us, t.num }
func Member(id [16]byte, n int64) string                     { return member(id, n) }
func LogKeys(name string) []string                           { return logKeys(name) }

func RedisKey(prefix, key string, a Algorithm) string { return redisKey(prefix, "", key, a) }

func TaggedKey(prefix, tag, key string, a Algorithm) string { return redisKey(prefix, tag, key, a) }

// Kept is how many keys the client has in memory.
func Kept(c *Client) int { return c.remembered(func(stateID) bool { return true }) }

// UnderWay is how many keys have a call under way.
func UnderWay(c *Client) int {
	n := 0
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

// Shares is how many keys the client counts by the policy LocalShare.
func Shares(c *Client) int {
	s := &c.breakers.share
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

// Asked is what tests ask without a Client: a Limiter, or Log.
type Asked interface{ asked() algorithm }

func (k *Limiter) asked() algorithm { return k.algorithm }

// Log is the sliding log of a StoredLimiter with the scope Overall.
var Log Asked = stored{}

type stored struct{}

func (stored) asked() algorithm { return &slidingLog{} }

// Asking is what tests send without a Client: requests that one script decides at an instant that the test chooses.
type Asking struct {
	of algorithm
	a  ask
}

// AskOf asks for the given numbers of permits, one request each.
func AskOf(k Asked, inOrder bool, requests ...int64) *Asking {
	q := &Asking{k.asked(), ask{inOrder: inOrder}}
	for _, n := range requests {
		q.a.addRun(n, 1)
		q.a.callers++
	}
	return q
}

// After says what the process knew before.
func (q *Asking) After(last Known) *Asking {
	q.a.last = last.s
	return q
}

// Call returns the call of the script.
func (q *Asking) Call(key string) scripts.Call { return q.of.encode(key, &q.a) }

// Results returns what each request is told, and what the process then knows.
func (q *Asking) Results(reply []int64) ([]Result, Known, error) {
	got, err := q.of.decode(&q.a, reply, reading{})
	if err != nil {
		return nil, Known{}, err
	}
	var all []Result
	for i := range got.decisions {
		all = append(all, resultOf(&got.decisions[i]))
	}
	return all, Known{got.snapshot}, nil
}

// Charge is a charge that can be given back in part.
type Charge struct {
	span
	delay time.Duration
}

// Delay is how long after the script the permits can be used.
func (c Charge) Delay() time.Duration { return c.delay }

// Settled is the answer to Reserving, ChargingAhead, GivingBack or Booking.
type Settled struct {
	Charges []Charge
	Given   bool
	Booked  int64
	Known   Known
}

// Reserving asks for permits that can be given back, and that can be used after some time at most; windows have no such
// permits.
func Reserving(k Asked, n int64, ahead time.Duration) *Asking {
	q := ChargingAhead(k, n, ahead)
	q.a.stamped = true
	return q
}

// ChargingAhead asks for permits for a waiter, that can be used after some time at most.
func ChargingAhead(k Asked, n int64, ahead time.Duration) *Asking {
	return &Asking{k.asked(), ask{inOrder: true, runs: []equalRequests{{n: n, count: 1}}, ahead: ahead}}
}

// GivingBack gives n permits of a charge back.
func GivingBack(k Asked, c Charge, n int64) *Asking {
	part := c.span
	k.asked().skip(&part, part.n-n)
	return &Asking{k.asked(), ask{back: []span{part}}}
}

// Booking charges a debt of at most so many permits above a whole burst; for a log it is the rate.
func Booking(k Asked, debt, most int64) *Asking {
	return &Asking{k.asked(), ask{debt: debt, most: most}}
}

// Settled returns the answer.
func (q *Asking) Settled(reply []int64) (s Settled, err error) {
	got, err := q.of.decode(&q.a, reply, reading{})
	for _, charge := range got.spans {
		s.Charges = append(s.Charges, Charge{charge, max(0, q.of.fit(got.spans, charge.n, -never/2).at)})
	}
	s.Given, s.Booked, s.Known = got.takenBack, got.booked, Known{got.snapshot}
	return s, err
}

// Known is what a process knows of a key.
type Known struct{ s snapshot }

// Denies reports whether the process denies n permits without asking, when so much time has passed.
func (k Known) Denies(n int64, passed time.Duration) bool {
	_, denied := k.s.cachedDenial(n, passed)
	return denied
}

// Wait is how long it thinks that n permits take.
func (k Known) Wait(n int64) time.Duration { return k.s.wait(n, 0) }

// ClientOf returns the Client of a Limiter.
func ClientOf(k *Limiter) *Client { return k.client }
