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

// keepingData returns the faults that are possible in the scenario, but for those that lose data.
func (s *Scenario) keepingData() (faults []*Fault) {
	for _, f := range Faults {
		if !f.Loses && s.possible(f) {
			faults = append(faults, f)
		}
	}
	return faults
}

// Fixed returns the scenarios of each run of make robustness. The lengths are fractions of the given one.
func Fixed(length time.Duration) (all []*Scenario) {
	for i, k := range Kinds {
		s := usual(k.Name, k.topology())
		s.Name, s.Length, s.Seed = k.Name+": every fault that keeps the data", length, uint64(i+1)
		s.Faults = s.keepingData()
		all = append(all, s)
	}
	s := usual("fenced mutex", Single)
	s.Name, s.Length, s.Seed = "fenced mutex: data is lost, processes stop", length, 100
	s.Faults = named("FLUSHALL", "process stopped", "process killed", "server hangs")
	for i, kind := range []string{"mutex", "fair mutex", "quorum"} {
		takeover := usual(kind, kindOf(kind).topology())
		takeover.Name, takeover.Length, takeover.Seed = kind+": holders are killed", length, uint64(110+i)
		takeover.Faults, takeover.Every = named("process killed"), 2*takeover.Lease
		all = append(all, takeover)
	}
	return append(append(all, s), limitScenarios(length)...)
}

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
	kinds := slices.Concat(Kinds, LimitKinds)
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
	for _, i := range rnd.Perm(len(Faults))[:2+rnd.IntN(6)] {
		if f := Faults[i]; s.possible(f) && (!f.Loses || rnd.IntN(4) == 0) {
			s.Faults = append(s.Faults, f)
			names = append(names, f.Name)
		}
	}
	s.Name = fmt.Sprintf("random, seed %d: %s", seed, strings.Join(names, ", "))
	return s
}
