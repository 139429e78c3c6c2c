package check_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// simulation is a correct server of one object, and the clients that use it. Each step takes effect at an instant
// between its call and its return.
type simulation struct {
	rnd    *rand.Rand
	rules  check.Rules
	shared bool // has readers
	now    int64
	token  int64
	ids    uint64
	held   []*simulated
	events []history.Event
}

// simulated is a hold at the server.
type simulated struct {
	id, owner uint64
	weight    int64
	from      int64 // the grant returned
}

const latency = 10

func (s *simulation) add(e history.Event) { s.events = append(s.events, e) }

func (s *simulation) taken() (sum int64) {
	owners := make(map[uint64]int64)
	for _, h := range s.held {
		if h.owner == 0 {
			sum += h.weight
		} else {
			owners[h.owner] = max(owners[h.owner], h.weight)
		}
	}
	for _, w := range owners {
		sum += w
	}
	return sum
}

// call begins a call that takes effect now, and returns its hold. Its client is in a process of its own.
func (s *simulation) call() *simulated {
	s.ids++
	e := history.Event{
		Step: history.Called, ID: s.ids, Client: history.ClientID(int(s.ids), 0), Object: "lock", N: 1,
		At: s.now - s.rnd.Int64N(latency), Try: true,
	}
	h := &simulated{id: s.ids, weight: 1}
	switch {
	case s.rules.Capacity > 1:
		e.N += s.rnd.Int64N(s.rules.Capacity)
		h.weight = e.N
	case s.shared && s.rnd.IntN(2) == 0:
		e.Shared = true
	default:
		h.weight = 1 << 20
	}
	if s.rules.Capacity == 1 && s.rnd.IntN(3) == 0 {
		e.Owner = uint64(1 + s.rnd.IntN(2))
		h.owner = e.Owner
	}
	s.add(e)
	return h
}

func (s *simulation) fits(h *simulated) bool {
	s.held = append(s.held, h)
	fits := s.taken() <= max(s.rules.Capacity, 1<<20*(2-min(s.rules.Capacity, 2)))
	s.held = s.held[:len(s.held)-1]
	return fits
}

func (s *simulation) grant(h *simulated, token int64) {
	if s.shared {
		token = 0 // readers share one, so they have none
	}
	h.from = s.now + s.rnd.Int64N(latency)
	s.held = append(s.held, h)
	s.add(history.Event{Step: history.Granted, ID: h.id, At: h.from, Token: token})
}

func (s *simulation) refuse(h *simulated) {
	s.add(history.Event{Step: history.Refused, ID: h.id, At: s.now + s.rnd.Int64N(latency)})
}

// end ends a hold now, by a release or otherwise.
func (s *simulation) end(i int) {
	h := s.held[i]
	s.held = append(s.held[:i:i], s.held[i+1:]...)
	until := s.now - s.rnd.Int64N(latency/2)
	if until > h.from {
		s.add(history.Event{Step: history.Relied, ID: h.id, At: until})
	}
	called := max(until, h.from)
	switch s.rnd.IntN(3) {
	case 0:
		s.add(history.Event{Step: history.Told, ID: h.id, At: called})
		s.add(history.Event{Step: history.Release, ID: h.id, At: called + 2*latency})
		s.add(history.Event{Step: history.Lost, ID: h.id, At: called + 3*latency})
	case 1:
		s.add(history.Event{Step: history.Killed, Client: history.ClientID(int(h.id), 0), At: called})
	default:
		s.now = max(s.now, called)
		s.add(history.Event{Step: history.Release, ID: h.id, At: called})
		s.add(history.Event{Step: history.Released, ID: h.id, At: s.now + s.rnd.Int64N(latency)})
	}
}

func (s *simulation) step() {
	s.now += 1 + s.rnd.Int64N(2*latency)
	if len(s.held) > 0 && s.rnd.IntN(3) == 0 {
		s.end(s.rnd.IntN(len(s.held)))
		return
	}
	h := s.call()
	if !s.fits(h) {
		s.refuse(h)
		return
	}
	owned := false
	for _, o := range s.held {
		owned = owned || o.owner != 0 && o.owner == h.owner
	}
	if !owned {
		s.token++
	}
	s.grant(h, s.token)
}

// finish ends all holds.
func (s *simulation) finish() []*history.Call {
	for len(s.held) > 0 {
		s.now += 3 * latency
		s.end(0)
	}
	return calls(s.events)
}

// empty ends all holds, and lets the time pass after which nothing explains a refusal.
func (s *simulation) empty() {
	for len(s.held) > 0 {
		s.now += 3 * latency
		s.end(0)
	}
	s.now += int64(s.rules.Lease) + 10*latency
}

// relied lets a hold be relied on and released after a while.
func (s *simulation) release(h *simulated, after int64) {
	s.add(history.Event{Step: history.Relied, ID: h.id, At: s.now + after})
	s.add(history.Event{Step: history.Release, ID: h.id, At: s.now + after})
	s.add(history.Event{Step: history.Released, ID: h.id, At: s.now + after + latency})
}

// mistakes are what a wrong server does, after the given steps of a correct one.
var mistakes = map[string]func(s *simulation){
	"overlap": func(s *simulation) {
		s.empty()
		a := s.call()
		a.weight, a.owner = 1<<20, 0
		s.events[len(s.events)-1].Owner, s.events[len(s.events)-1].Shared = 0, false
		s.events[len(s.events)-1].N = max(1, s.rules.Capacity)
		s.token++
		s.add(history.Event{Step: history.Granted, ID: a.id, At: s.now, Token: s.token})
		s.release(a, 5*latency)
		s.now += 2 * latency
		b := s.call()
		s.token++
		s.add(history.Event{Step: history.Granted, ID: b.id, At: s.now, Token: s.token})
		s.release(b, 2*latency)
		s.now += 10 * latency
	},
	"linearizable": func(s *simulation) { // a refusal of what is free
		s.empty()
		s.refuse(s.call())
		s.now += 10 * latency
	},
	"tokens increase": func(s *simulation) {
		s.token++
		s.empty()
		h := s.call()
		s.events[len(s.events)-1].Owner = 0
		s.add(history.Event{Step: history.Granted, ID: h.id, At: s.now, Token: 1})
		s.release(h, latency)
		s.now += 5 * latency
	},
	"told in time": func(s *simulation) {
		s.empty()
		a := s.call()
		s.events[len(s.events)-1].Owner, s.events[len(s.events)-1].Shared = 0, false
		s.token++
		s.add(history.Event{Step: history.Granted, ID: a.id, At: s.now, Token: s.token})
		s.now += 10 * latency
		b := s.call()
		s.events[len(s.events)-1].Owner = 0
		s.token++
		s.add(history.Event{Step: history.Granted, ID: b.id, At: s.now, Token: s.token})
		s.release(b, latency)
		s.now += 5 * latency
		s.add(history.Event{Step: history.Told, ID: a.id, At: s.now})
		s.now += 5 * latency
	},
}

func TestChecks_AcceptASimulatedServerAndRejectItsMistakes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		s := &simulation{
			rnd:    rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0)),
			rules:  check.Rules{Capacity: rapid.SampledFrom([]int64{1, 1, 4}).Draw(rt, "capacity"), Lease: 200},
			shared: rapid.Bool().Draw(rt, "readers"), now: 100,
		}
		wrong := rapid.SampledFrom([]string{"", "overlap", "linearizable", "tokens increase", "told in time"}).Draw(rt, "mistake")
		if wrong == "told in time" || wrong == "tokens increase" {
			s.rules.Capacity, s.shared = 1, false
		}
		for range rapid.IntRange(1, 30).Draw(rt, "before") {
			s.step()
		}
		if wrong != "" {
			s.token++
			mistakes[wrong](s)
		}
		for range rapid.IntRange(0, 20).Draw(rt, "after") {
			s.step()
		}
		c := s.finish()
		_, _, faults := check.Overlap(c, s.rules)
		faults = append(faults, check.Tokens(c)...)
		faults = append(faults, check.Linear(c, s.rules, 0, time.Minute)...)
		_, late := check.InTime(c, s.rules, nil, 2*latency)
		faults = append(faults, late...)
		if wrong == "" {
			require.Empty(rt, faults)
			return
		}
		var found []string
		for _, f := range faults {
			found = append(found, f.Promise)
		}
		require.Contains(rt, found, wrong, fmt.Sprint(faults))
	})
}
