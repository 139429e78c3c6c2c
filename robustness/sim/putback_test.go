package sim_test

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/robustness/mutants"
	"github.com/cogwheel-go/cogwheel/robustness/sim"
)

// schedules find faults that drawn ones seldom meet, by the names that the files of package mutants give them.
var schedules = map[string]func() *sim.Schedule{
	"lost leases": lostLeases,
	"late end":    lateEnd,
}

// lateEnd is a schedule in which the call that records the end of an attempt is lost, while leases are renewed.
func lateEnd() *sim.Schedule {
	plan := func(id string, hold time.Duration) sim.Op {
		return sim.Op{At: 100 * time.Millisecond, Action: sim.Plan, Task: sim.Task{ID: id}, Hold: hold}
	}
	serve := sim.Op{Action: sim.Serve, N: 2, Hold: 15 * time.Second}
	other := serve
	other.At, other.Process = 300*time.Millisecond, 1
	return &sim.Schedule{
		Seed: 1, Processes: 2, Lease: time.Second, Poll: 30 * time.Second, Tick: time.Millisecond,
		Least: 50 * time.Microsecond, Most: 50 * time.Microsecond, Timeout: 5 * time.Second, Retries: -1,
		Policy: "closed", Length: 20 * time.Second, Objects: []sim.Object{{Kind: "delayed tasks", Name: "tasks"}},
		Ops:    []sim.Op{serve, other, plan("a", 500*time.Millisecond), plan("b", 10*time.Second)},
		Faults: []sim.Fault{{At: 500 * time.Millisecond, Kind: "requests lost", N: 1}},
	}
}

// lostLeases is a schedule in which the workers of a process lose their leases while tasks are due, that were claimed
// ahead and handed back.
func lostLeases() *sim.Schedule {
	s := &sim.Schedule{
		Seed: 1, Processes: 1, Lease: time.Second, Poll: 30 * time.Second, Tick: time.Millisecond,
		Least: 50 * time.Microsecond, Most: 50 * time.Microsecond, Timeout: 300 * time.Millisecond, Retries: -1,
		Policy: "closed", Length: 30 * time.Second, Objects: []sim.Object{{Kind: "delayed tasks", Name: "tasks"}},
		Ops:    []sim.Op{{Action: sim.Serve, N: 2, Hold: 29 * time.Second}},
		Faults: []sim.Fault{{At: 1500 * time.Millisecond, Kind: "no replicas", For: 1200 * time.Millisecond}},
	}
	for i := range 30 {
		o := sim.Op{At: time.Duration(100+30*i) * time.Millisecond, Action: sim.Plan, Task: sim.Task{ID: fmt.Sprint(i)}}
		if i >= 10 {
			o.At, o.Hold = 1400*time.Millisecond, 2*time.Second
		}
		s.Ops = append(s.Ops, o)
	}
	return s
}

// TestPutBack puts each fault of package mutants back that the simulation has to find, and runs schedules until one
// does.
func TestPutBack(t *testing.T) {
	if os.Getenv("CONTROLS") == "" {
		t.Skip("takes minutes: make simulate-controls")
	}
	all, err := mutants.Read(root)
	require.NoError(t, err)
	for _, m := range all {
		if only := os.Getenv("CONTROL"); m.Simulate == "" || cmp.Or(only, m.Fault) != m.Fault {
			continue
		}
		t.Run(m.Fault, func(t *testing.T) {
			binary := build(t, m)
			switch how, what, _ := strings.Cut(m.Simulate, " "); how {
			case "any":
				find(t, m.Fault, sim.Orders{Binary: binary}, nil)
			case "kind":
				find(t, m.Fault, sim.Orders{Binary: binary, Kinds: []string{what}}, nil)
			case "promise":
				find(t, m.Fault, sim.Orders{Binary: binary, Health: true}, []string{what})
			case "fleet":
				find(t, m.Fault, sim.Orders{Binary: binary, Fleet: true}, []string{what})
			case "schedule":
				require.Contains(t, schedules, what)
				findBy(t, m.Fault, binary, schedules[what]())
			default:
				require.Fail(t, m.Simulate)
			}
		})
	}
}

const root = "../.." // of the repository

// findBy runs a schedule twenty times, of which one breaks a promise, and none without the fault.
func findBy(t *testing.T, name, binary string, s *sim.Schedule) {
	t.Helper()
	const runs = 20
	broken := func(binary string) (n int, by string) {
		require.NoError(t, sim.Orders{Schedule: s, Count: runs, Binary: binary}.Each(func(res *sim.Result) bool {
			if len(res.Faults) > 0 {
				n, by = n+1, res.Faults[0].Promise
			}
			return true
		}))
		return n, by
	}
	n, by := broken(binary)
	require.Positive(t, n)
	note(t, sim.Finding{Finding: name, Seeds: 1, By: by, Again: n, Runs: runs})
	n, by = broken("")
	require.Zero(t, n, by)
}

// build builds this test with a fault.
func build(t *testing.T, m mutants.Mutant) (binary string) {
	t.Helper()
	dir := t.TempDir()
	overlay, err := m.Overlay(root, dir)
	require.NoError(t, err)
	binary = filepath.Join(dir, "sim.test")
	compile := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", overlay, "-o", binary, ".")
	out, err := compile.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}
