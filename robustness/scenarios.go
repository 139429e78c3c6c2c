package robustness

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// usual is what scenarios have in common, unless they say otherwise: sixteen callers, in four processes of two
// clients, use three objects.
func usual(kind string, topology Topology) *Scenario {
	return &Scenario{
		Kind: kind, Topology: topology,
		Settings:  Settings{Lease: 1500 * time.Millisecond, Poll: 500 * time.Millisecond, Tick: time.Millisecond},
		Processes: 4, Clients: 2, Callers: 2, Objects: 3, MaxHold: 30 * time.Millisecond, GiveUp: 0.1,
		Every: 500 * time.Millisecond,
	}
}

// overload is the share of calls that give up soon from which on a run is about those.
const overload = 0.9

// choice chooses the faults of a scenario.
type choice = func(*Scenario) []*Fault

// Fixed returns the scenarios of each run of make robustness. Each lasts at least for the length, and until each of
// its faults has taken effect.
func Fixed(length time.Duration) (all []*Scenario) {
	add := func(kind string, topology Topology, what string, faults choice, changes ...func(*Scenario)) {
		s := usual(kind, topology)
		s.Name, s.Length, s.Seed, s.Each = kind+" on "+string(topology)+": "+what, length, uint64(len(all)+1), true
		for _, change := range changes {
			change(s)
		}
		s.Faults = faults(s)
		all = append(all, s)
	}
	for _, k := range Kinds {
		add(k.Name, k.topology(), "processes, networks, servers", stalls)
	}
	// Package sim has refusals of all other kinds.
	for _, kind := range []string{"fenced mutex", "fair leased permits", "quorum"} {
		add(kind, KindOf(kind).topology(), "refusals", refused)
	}
	for _, kind := range []string{"fenced mutex", "leased permits"} {
		add(kind, Single, "data is lost", lost)
	}
	add("fenced mutex", Single, "clocks", func(s *Scenario) []*Fault {
		clocks := named("clock set forward", "clock set back")
		return slices.DeleteFunc(clocks, func(f *Fault) bool { return !s.possible(f) })
	})
	fails := func(s *Scenario) []*Fault { return s.losing(failovers) }
	add("fair mutex", Sentinel, "processes, networks, servers", keeps)
	add("fenced mutex", Sentinel, "failovers", fails)
	add("leased permits", Sentinel, "failovers", fails)
	add("mutex", Cluster, "processes, networks, servers, slots", keeps)
	add("leased permits", Cluster, "processes, networks, servers, slots", keeps)
	add("fenced mutex", Cluster, "failovers", fails)
	add("fair mutex", Cluster, "refusals", refused)

	for _, kind := range []string{"fenced mutex", "fair leased permits"} {
		add(kind, Single, "overload", few, func(s *Scenario) {
			s.GiveUp, s.Callers, s.MaxHold = 0.95, 8, 5*time.Millisecond
		})
		add(kind, Single, "leases of different lengths", few, func(s *Scenario) {
			s.Leases = []time.Duration{300 * time.Millisecond, time.Second, s.Lease, 3 * time.Second}
			s.Lease = 3 * time.Second
		})
		add(kind, Single, "a coarse wheel", few, func(s *Scenario) { s.Tick = 100 * time.Millisecond })
	}
	for _, kind := range []string{"mutex", "fair mutex", "quorum"} {
		add(kind, KindOf(kind).topology(), "holders are killed", killed, func(s *Scenario) { s.Every = 2 * s.Lease })
	}

	some := func(s *Scenario) { s.Each = false } // not all faults reach what a limiter uses
	for _, k := range LimitKinds {
		add(k.Name, Single, "processes, networks, servers", stalls, some)
	}
	add(LimitKinds[0].Name, Single, "refusals", refused, some)
	add(LimitKinds[0].Name, Single, "data is lost", lost)

	tasks := TaskKinds[0].Name
	add(tasks, Single, "processes, networks, servers", stalls)
	add(tasks, Single, "refusals", refused)
	add(tasks, Single, "workers are killed", killed, func(s *Scenario) {
		s.Lease, s.Every = 4*time.Second, 4*time.Second
	})
	add(tasks, Sentinel, "processes, networks, servers", keeps)
	add(tasks, Cluster, "processes, networks, servers, slots", keeps)

	fleets := []string{"mutex", "leased permits"}
	for _, kind := range fleets {
		add(kind, Single, "a fleet of 20 processes", dying, fleet)
	}
	add("mutex", Sentinel, "a fleet of 20 processes, failovers", deposing, fleet)
	for _, kind := range fleets {
		add(kind, Cluster, "a fleet of 20 processes, slots", moving, fleet)
	}
	return all
}

func stalls(s *Scenario) []*Fault { return s.those(processFaults, serverFaults) }

func keeps(s *Scenario) []*Fault { return s.those(processFaults, serverFaults, failovers) }

func refused(s *Scenario) []*Fault {
	return s.those(refusals, named("key persisted", "replies lost after execution"))
}

func dying(*Scenario) []*Fault { return named("process stopped", "process killed") }

func deposing(s *Scenario) []*Fault {
	return append(dying(s), named("primary killed, back as a replica")...)
}

func moving(s *Scenario) []*Fault { return append(dying(s), named("slot migrates")...) }

// fleet makes a scenario one of many processes on few names. Their polls are so seldom that whoever waits for one is
// seen.
func fleet(s *Scenario) {
	s.Fleet, s.Processes, s.Clients, s.Callers, s.Objects = true, 20, 1, 1, 2
	s.Poll, s.MaxHold = 30*time.Second, 10*time.Millisecond
}

func few(*Scenario) []*Fault {
	return named("replies lost after execution", "connections killed", "process killed")
}

func lost(s *Scenario) []*Fault {
	return append(s.losing(losses), named("process stopped", "process killed")...)
}

func killed(*Scenario) []*Fault { return named("process killed") }

// topology returns the simplest topology that has the kind.
func (k *Kind) topology() Topology {
	if k.Quorum {
		return Quorum
	}
	return Single
}

// Random returns the scenario of a seed.
func Random(seed uint64, length time.Duration) *Scenario {
	rnd := rand.New(rand.NewPCG(seed, 1))
	kinds := slices.Concat(Kinds, LimitKinds, TaskKinds)
	k := kinds[rnd.IntN(len(kinds))]
	s := usual(k.Name, k.topology())
	if rnd.IntN(4) == 0 && !k.Quorum {
		s.Topology = []Topology{Sentinel, Cluster}[rnd.IntN(2)]
	}
	s.Seed, s.Length = seed, length
	s.Lease = time.Duration(1000+rnd.IntN(3000)) * time.Millisecond
	s.Poll = time.Duration(200+rnd.IntN(1000)) * time.Millisecond
	s.Tick = []time.Duration{time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond}[rnd.IntN(3)]
	s.Processes, s.Clients, s.Callers, s.Objects = 2+rnd.IntN(4), 1+rnd.IntN(3), 1+rnd.IntN(4), 1+rnd.IntN(4)
	s.MaxHold = time.Duration(2+rnd.IntN(100)) * time.Millisecond
	s.GiveUp = rnd.Float64() * 0.3
	s.Every = time.Duration(100+rnd.IntN(1000)) * time.Millisecond
	var names []string
	order, most := rnd.Perm(len(Faults)), 2+rnd.IntN(6)
	for _, i := range order {
		if f := Faults[i]; len(names) < most && s.possible(f) && !f.Clock && (!f.Loses || rnd.IntN(4) == 0) {
			s.Faults = append(s.Faults, f)
			names = append(names, f.Name)
		}
	}
	switch rnd.IntN(8) {
	case 0:
		s.GiveUp, s.MaxHold = 0.95, 5*time.Millisecond
	case 1, 2:
		if k.Tasks != nil {
			break // the processes of a queue have the same
		}
		s.Leases = []time.Duration{s.Lease, 500 * time.Millisecond, s.Lease / 2}
	}
	s.Name = fmt.Sprintf("random, seed %d: %s", seed, strings.Join(names, ", "))
	return s
}
