package ratelimit_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/testsize"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// storm is waiters that come, lose patience and come back, in virtual time.
type storm struct {
	t                 *testing.T
	kind              string
	limit             ratelimit.Limit
	processes, each   int           // waiters in each process
	most              int64         // permits that one of them asks for
	patience          time.Duration // at most; 0 is for ever
	think             time.Duration // until one comes back, at most
	up, down          time.Duration // of the network
	lasts             time.Duration
	seed              uint64
	cancelled, served int
	grants            []oracle.Grant
	scripts           int
}

func (s *storm) run() {
	script := scripts.RateGCRA
	if s.kind == "sliding" {
		script = scripts.RateSliding
	}
	server, key := newVirtualServer(s.t, script), redistest.Name(s.t)
	sim := ratelimit.NewLineSim(s.kind, s.limit, s.processes, s.seed, func(call scripts.Call, micros int64) []int64 {
		call.Keys = []string{key}
		return server.execute(call, micros)
	})
	sim.Up, sim.Down = s.up, s.down
	rng := rand.New(rand.NewPCG(s.seed, 3))
	some := func(most time.Duration) time.Duration {
		if most == 0 {
			return 0
		}
		return time.Duration(rng.Int64N(int64(most)))
	}
	var come func(process int)
	come = func(process int) {
		w := sim.Wait(process, 1+rng.Int64N(s.most), 0)
		again := func() {
			if w.Err == nil && w.Ret > 0 {
				s.served++
				s.grants = append(s.grants, oracle.Grant{Call: int64(w.Call), Return: int64(w.Ret), N: w.N})
			}
			sim.After(some(s.think), func() { come(process) })
		}
		if w.Done {
			again()
			return
		}
		w.Then = again
		if s.patience > 0 {
			sim.After(some(s.patience), func() {
				if sim.Cancel(w) {
					s.cancelled++
					sim.After(some(s.think), func() { come(process) })
				}
			})
		}
	}
	for p := range s.processes {
		for range s.each {
			sim.After(some(5*time.Millisecond), func() { come(p) })
		}
	}
	sim.Run(s.lasts)
	s.scripts = len(sim.Scripts)
}

func (s *storm) granted() (n int64) {
	for _, g := range s.grants {
		n += g.N
	}
	return n
}

// bound is what a stretch of time may hold.
func (s *storm) bound() oracle.Bound {
	limit := oracle.Limit(s.limit)
	switch s.kind {
	case "log":
		return limit.LogBound()
	case "window", "sliding":
		return limit.WindowsBound()
	}
	return limit.BucketBound()
}

// demand is how much could be granted, but for a burst or a window at the beginning and the end.
func (s *storm) demand() float64 {
	return float64(s.limit.Rate) * float64(s.lasts) / float64(s.limit.Per)
}

// Guarantees: Q10.
func TestLine_KeepsTheLimitAndUsesItUp(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, s := range []storm{
		{kind: "gcra", limit: ratelimit.PerSecond(100).WithBurst(1), processes: 1, each: 20, most: 1},
		{kind: "gcra", limit: ratelimit.PerSecond(1000).WithBurst(1), processes: 1, each: 20, most: 1},
		{kind: "gcra", limit: ratelimit.PerSecond(1000).WithBurst(1), processes: 4, each: 20, most: 1},
		{kind: "gcra", limit: ratelimit.PerSecond(10_000).WithBurst(1), processes: 1, each: 250, most: 1},
		{kind: "gcra", limit: ratelimit.PerSecond(100).WithBurst(10), processes: 4, each: 20, most: 5},
		{kind: "gcra", limit: ratelimit.Limit{Rate: 3, Per: ms, Burst: 3}, processes: 1, each: 64, most: 1},
		{kind: "window", limit: ratelimit.Limit{Rate: 3, Per: ms, Burst: 3}, processes: 1, each: 64, most: 1},
		{kind: "window", limit: ratelimit.Limit{Rate: 100, Per: 100 * ms, Burst: 100}, processes: 2, each: 64, most: 1},
		{kind: "log", limit: ratelimit.Limit{Rate: 3, Per: ms, Burst: 3}, processes: 1, each: 64, most: 1},
		{kind: "log", limit: ratelimit.Limit{Rate: 100, Per: 100 * ms, Burst: 100}, processes: 1, each: 64, most: 1},
		{kind: "log", limit: ratelimit.Limit{Rate: 100, Per: 100 * ms, Burst: 100}, processes: 3, each: 64, most: 1},
		{kind: "log", limit: ratelimit.Limit{Rate: 100, Per: time.Second, Burst: 100}, processes: 4, each: 16, most: 3},
		{kind: "window", limit: ratelimit.Limit{Rate: 100, Per: time.Second, Burst: 100}, processes: 4, each: 16, most: 3},
		{kind: "gcra", limit: ratelimit.PerSecond(100).WithBurst(3), processes: 1, each: 16, most: 3},
		{kind: "gcra", limit: ratelimit.PerSecond(1000).WithBurst(100), processes: 4, each: 16, most: 10},
	} {
		if s.each > 100 && !testsize.Full() {
			continue // its goroutines compute for most of a minute
		}
		for _, network := range []time.Duration{ms / 10, 5 * ms} {
			for _, patience := range []time.Duration{0, 40 * ms} {
				s := s
				s.up, s.down, s.patience, s.think, s.lasts, s.seed = network, network, patience, ms/10, 2*time.Second, 1
				what := fmt.Sprintf("%s, %v, %d processes, network %v, patience %v", s.kind, s.limit, s.processes, network, patience)
				t.Run(what, func(t *testing.T) {
					t.Parallel()
					s.t = t
					s.run()
					use := float64(s.granted()) / s.demand()
					scripts := float64(s.scripts) / float64(s.processes) / s.lasts.Seconds()
					t.Logf("%.4f of the rate, %.0f scripts a second and process, %d cancelled", use, scripts, s.cancelled)
					least := 0.99
					if s.most > 1 && s.most == s.limit.Burst {
						least = 0.98 // a place for the whole burst is lost if its waiter leaves shortly before
					}
					require.GreaterOrEqual(t, use, least)
					require.LessOrEqual(t, scripts, 106.0, "one in 10 ms, and a few to begin with")
					require.Equal(t, patience > 0, s.cancelled > 100)
					require.LessOrEqual(t, oracle.ExcessWithin(300*ms, s.grants, s.bound()), 0.0)
				})
			}
		}
	}
}

// Waiters that come seldom and go soon leave permits behind.
func TestLine_WhatIsLeftBehindIsNotGrantedOnTop(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, s := range []storm{
		{kind: "gcra", limit: ratelimit.PerSecond(100).WithBurst(1), most: 1},
		{kind: "gcra", limit: ratelimit.PerSecond(1000).WithBurst(20), most: 20},
		{kind: "gcra", limit: ratelimit.Limit{Rate: 7, Per: 10 * ms, Burst: 2}, most: 2},
		{kind: "window", limit: ratelimit.Limit{Rate: 20, Per: 20 * ms, Burst: 20}, most: 20},
		{kind: "log", limit: ratelimit.Limit{Rate: 20, Per: 20 * ms, Burst: 20}, most: 20},
		{kind: "stocked", limit: ratelimit.PerSecond(1000).WithBurst(20), most: 20},
	} {
		t.Run(fmt.Sprintf("%s, %v", s.kind, s.limit), func(t *testing.T) {
			t.Parallel()
			worst := -1.0
			for seed := range uint64(8) {
				s := s
				s.t = t
				s.processes, s.each, s.up, s.down, s.patience, s.think = 3, 3, 4*ms, 4*ms, 10*ms, 30*ms
				s.lasts, s.seed = 3*time.Second, seed
				s.run()
				require.Greater(t, s.cancelled, 100)
				require.Greater(t, len(s.grants), 20)
				worst = max(worst, oracle.Excess(s.grants, s.bound()))
			}
			if s.kind == "stocked" {
				require.Positive(t, worst, "control: what is kept for later callers is granted on top")
			} else {
				require.LessOrEqual(t, worst, 0.0)
			}
		})
	}
}

// A permit whose window has ended serves nobody. A line that counts it asks for too few, and those expire while it waits
// for more. A waiter for the whole limit then waits for ever.
func TestLine_DoesNotCountOnPermitsOfAWindowThatHasEnded(t *testing.T) {
	t.Parallel()
	limit := ratelimit.Limit{Rate: 2, Per: 2 * time.Second, Burst: 2}
	for now, want := range map[time.Duration]int64{time.Second: 1, 1999 * time.Millisecond: 1, 2004 * time.Millisecond: 2} {
		require.Equal(t, want, ratelimit.MissingInSlidingWindow(limit, 2, 1, 1999*time.Millisecond, now), now)
	}
}

// More processes wait than can reserve within a minute. They take turns.
func TestLine_NoProcessStarves(t *testing.T) {
	t.Parallel()
	server, key := newVirtualServer(t, scripts.RateGCRA), redistest.Name(t)
	limit := ratelimit.Limit{Rate: 1, Per: 20 * time.Second, Burst: 1}
	sim := ratelimit.NewLineSim("gcra", limit, 8, 1, func(call scripts.Call, micros int64) []int64 {
		call.Keys = []string{key}
		return server.execute(call, micros)
	})
	var served [8]int
	var come func(process int)
	come = func(process int) {
		w := sim.Wait(process, 1, 0)
		w.Then = func() {
			served[process]++
			come(process)
		}
	}
	for process := range served {
		for range 2 {
			sim.After(time.Duration(process)*time.Millisecond, func() { come(process) })
		}
	}
	sim.Run(1000 * time.Second)
	t.Log(served)
	require.NotContains(t, served, 0)
}
