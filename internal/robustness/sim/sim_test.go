//go:build simulation

package sim_test

import (
	"cmp"
	"encoding/json"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/robustness"
	"github.com/cogwheel-go/cogwheel/internal/robustness/sim"
)

// TestOrders is what the processes run that the other tests start.
func TestOrders(t *testing.T) {
	if !sim.Obey(t) {
		t.Skip("only other tests give orders")
	}
}

// TestSimulate runs the schedules of some seeds. SEED names the first one, and DURATION is for how long they
// run: it is make simulate. Otherwise it runs some seeds that are always the same, and then random ones.
func TestSimulate(t *testing.T) {
	if os.Getenv("SIM_ORDERS") != "" || testing.Short() {
		t.Skip("takes 20 seconds")
	}
	seed, lasts := os.Getenv("SEED"), os.Getenv("DURATION")
	var all sim.Figures
	switch {
	case os.Getenv("SIMULATE") == "":
		simulate(t, &all, 1, 10*time.Second)
		simulate(t, &all, random(), 10*time.Second)
	case seed == "" && lasts == "":
		simulate(t, &all, random(), time.Minute)
	case lasts == "":
		first, err := strconv.ParseUint(seed, 10, 64)
		require.NoError(t, err, "SEED")
		simulate(t, &all, first, 0)
	default:
		d, err := time.ParseDuration(lasts)
		require.NoError(t, err, "DURATION")
		first := random()
		if seed != "" {
			first, err = strconv.ParseUint(seed, 10, 64)
			require.NoError(t, err, "SEED")
		}
		simulate(t, &all, first, d)
	}
	t.Log(&all)
	record(t, &all)
	require.Empty(t, all.Failed)
}

func random() uint64 { return uint64(time.Now().UnixNano() % 1e9) }

// explained is how many failures of a test are shrunk.
const explained = 5

// simulate runs the schedules of a seed and those after it for a while, but one at least.
func simulate(t *testing.T, all *sim.Figures, seed uint64, lasts time.Duration) {
	t.Helper()
	t.Logf("first seed %d, for %v", seed, lasts)
	began := time.Now()
	require.NoError(t, sim.Orders{Seed: seed, Count: 1 << 30}.Each(func(res *sim.Result) bool {
		all.Add(res)
		if len(res.Faults) > 0 && len(all.Failed) <= explained {
			t.Error(sim.Explain(res, nil, robustness.Commit(), time.Minute))
		}
		return time.Since(began) < lasts
	}))
	all.Took += time.Since(began)
}

// record appends figures to the file that ROBUSTNESS_RESULTS names.
func record(t *testing.T, figures *sim.Figures) {
	t.Helper()
	path := os.Getenv("ROBUSTNESS_RESULTS")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	require.NoError(t, err)
	require.NoError(t, json.NewEncoder(f).Encode(sim.Line{Simulated: figures}))
	require.NoError(t, f.Close())
}

// TestControls runs each wrong implementation until it is found: it is make simulate-controls. CONTROL names one.
func TestControls(t *testing.T) {
	if os.Getenv("CONTROLS") == "" {
		t.Skip("takes minutes: make simulate-controls")
	}
	for _, k := range robustness.ControlKinds {
		if only := os.Getenv("CONTROL"); cmp.Or(only, k.Name) == k.Name {
			t.Run(k.Name, func(t *testing.T) { find(t, []string{k.Name}) })
		}
	}
}

// TestKnown finds out in how many seeds each known fault of the library is found.
func TestKnown(t *testing.T) {
	if os.Getenv("CONTROLS") == "" {
		t.Skip("takes minutes: make simulate-controls")
	}
	const most, runs = 2000, 20
	first := make(map[string]uint64)
	require.NoError(t, sim.Orders{Seed: 1, Count: most}.Each(func(res *sim.Result) bool {
		for _, name := range res.Known {
			if first[name] == 0 {
				first[name] = res.Seed
			}
		}
		return len(first) < len(sim.Known())
	}))
	for _, name := range sim.Known() {
		if seed := first[name]; seed > 0 {
			again := sim.Repeat(seed, nil, name, runs)
			t.Logf("%s: found after %d seeds; %d of %d runs of that seed find it", name, seed, again, runs)
		} else {
			t.Errorf("%s: not found in %d seeds", name, most)
		}
	}
}

// find runs schedules until one fails, and that one twenty times.
func find(t *testing.T, kinds []string) {
	const most, runs = 300, 20
	seeds := 0
	var found *sim.Result
	require.NoError(t, sim.Orders{Seed: 1, Count: most, Kinds: kinds}.Each(func(res *sim.Result) bool {
		seeds++
		if len(res.Faults) > 0 {
			found = res
		}
		return found == nil
	}))
	require.NotNil(t, found, "not found in %d seeds", seeds)
	promise := found.Faults[0].Promise
	t.Logf("found after %d seeds, by %q; %d of %d runs of seed %d find it", seeds, promise,
		sim.Repeat(found.Seed, kinds, promise, runs), runs, found.Seed)
}
