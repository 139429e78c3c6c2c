package ratelimit

import (
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/keys"
)

func Member(id [16]byte, n int64) string { return algo.Member(id, n) }
func LogKeys(name string) []string       { return algo.LogKeys(name) }

func RedisKey(prefix, key string, a Algorithm) string { return redisKey(prefix, "", key, a) }

func TaggedKey(prefix, tag, key string, a Algorithm) string { return redisKey(prefix, tag, key, a) }

// Kept is how many keys the client has in memory.
func Kept(c *Client) int { return c.core.Count(func(keys.ID) bool { return true }) }

// UnderWay is how many keys have a call under way.
func UnderWay(c *Client) int { return c.core.UnderWay() }

// Shares is how many keys the client counts by the policy LocalShare.
func Shares(c *Client) int {
	return c.core.Breakers.Shares()
}

// States is how many keys of a Limiter the process remembers.
func States(k *Limiter) int {
	return k.client.core.Count(func(id keys.ID) bool { return id.Options == k.options && strings.HasPrefix(id.Key, k.prefix+":{") })
}

// Names is how many limiters the client remembers.
func Names(c *Client) int {
	return c.core.Count(func(id keys.ID) bool { return id.Options.Algorithm == logAlgorithm })
}

// Asked is what tests ask without a Client: a Limiter, or Log.
type Asked interface{ asked() algo.Algorithm }

func (k *Limiter) asked() algo.Algorithm { return k.algorithm }

// Log is the sliding log of a StoredLimiter with the scope Overall.
var Log Asked = stored{}

type stored struct{}

func (stored) asked() algo.Algorithm { return algo.NewLog("") }

// Asking is what tests send without a Client: requests that one script decides at an instant that the test chooses.
type Asking struct {
	of algo.Algorithm
	a  algo.Ask
}

// AskOf asks for the given numbers of permits, one request each.
func AskOf(k Asked, inOrder bool, requests ...int64) *Asking {
	q := &Asking{k.asked(), algo.Ask{Request: algo.Request{InOrder: inOrder}}}
	for _, n := range requests {
		q.a.AddRun(n, 1)
		q.a.Callers++
	}
	return q
}

// After says what the process knew before.
func (q *Asking) After(last Known) *Asking {
	q.a.Last = last.s
	return q
}

// Call returns the call of the script.
func (q *Asking) Call(key string) scripts.Call { return q.of.Encode(key, &q.a) }

// Results returns what each request is told, and what the process then knows.
func (q *Asking) Results(reply []int64) ([]Result, Known, error) {
	got, err := q.of.Decode(&q.a, reply, algo.Reading{})
	if err != nil {
		return nil, Known{}, err
	}
	var all []Result
	for i := range got.Decisions {
		all = append(all, resultOf(&got.Decisions[i]))
	}
	return all, Known{got.Snapshot}, nil
}

// Charge is a charge that can be given back in part.
type Charge struct {
	algo.Span
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
	return &Asking{k.asked(), algo.Ask{Request: algo.Reserve(n, ahead)}}
}

// ChargingAhead asks for permits for a waiter, that can be used after some time at most.
func ChargingAhead(k Asked, n int64, ahead time.Duration) *Asking {
	return &Asking{k.asked(), algo.Ask{Request: algo.Request{
		InOrder: true, Runs: []algo.Run{{N: n, Count: 1}}, Ahead: ahead,
	}}}
}

// GivingBack gives n permits of a charge back.
func GivingBack(k Asked, c Charge, n int64) *Asking {
	part := c.Span
	k.asked().Skip(&part, part.N-n)
	return &Asking{k.asked(), algo.Ask{Settlement: algo.Settlement{Back: []algo.Span{part}}}}
}

// AndAsk asks for n permits in the same script, as waiters do.
func (q *Asking) AndAsk(n int64) *Asking {
	q.a.Request = algo.Request{InOrder: true, Runs: []algo.Run{{N: n, Count: 1}}}
	return q
}

// Booking charges a debt of at most so many permits above a whole burst; for a log it is the rate.
func Booking(k Asked, debt, most int64) *Asking {
	return &Asking{k.asked(), algo.Ask{Settlement: algo.Settlement{Debt: debt, Most: most}}}
}

// Settled returns the answer.
func (q *Asking) Settled(reply []int64) (s Settled, err error) {
	got, err := q.of.Decode(&q.a, reply, algo.Reading{})
	for _, charge := range got.Spans {
		s.Charges = append(s.Charges, Charge{charge, max(0, q.of.Fit(got.Spans, charge.N, -keys.Never/2).At)})
	}
	s.Given, s.Booked, s.Known = got.TakenBack, got.Booked, Known{got.Snapshot}
	return s, err
}

// Known is what a process knows of a key.
type Known struct{ s algo.Snapshot }

// Denies reports whether the process denies n permits without asking, when so much time has passed.
func (k Known) Denies(n int64, passed time.Duration) bool {
	_, denied := k.s.CachedDenial(n, passed)
	return denied
}

// Wait is how long it thinks that n permits take.
func (k Known) Wait(n int64) time.Duration { return k.s.Wait(n, 0) }

// ClientOf returns the Client of a Limiter.
func ClientOf(k *Limiter) *Client { return k.client }
