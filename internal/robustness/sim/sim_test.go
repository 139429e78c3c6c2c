package sim_test

import (
	"cmp"
	"encoding/json"
	"os"
	"slices"
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
// run: it is make simulate. Otherwise it runs seeds that are always the same.
func TestSimulate(t *testing.T) {
	if os.Getenv("SIM_ORDERS") != "" || testing.Short() {
		t.Skip("takes 20 seconds")
	}
	var all sim.Figures
	first, lasts := random(), time.Minute
	switch seed, duration := os.Getenv("SEED"), os.Getenv("DURATION"); {
	case os.Getenv("SIMULATE") == "":
		first, lasts = 1, 20*time.Second
	default:
		var err error
		if seed != "" {
			first, err = strconv.ParseUint(seed, 10, 64)
			require.NoError(t, err, "SEED")
			lasts = 0
		}
		if duration != "" {
			lasts, err = time.ParseDuration(duration)
			require.NoError(t, err, "DURATION")
		}
	}
	simulate(t, &all, first, lasts)
	t.Log(&all)
	record(t, first, &all)
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
func record(t *testing.T, seed uint64, figures *sim.Figures) {
	t.Helper()
	path := os.Getenv("ROBUSTNESS_RESULTS")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	require.NoError(t, err)
	require.NoError(t, json.NewEncoder(f).Encode(sim.Line{
		Simulated: figures, Seed: seed, Date: time.Now().UTC().Truncate(time.Second), Commit: robustness.Commit(),
	}))
	require.NoError(t, f.Close())
}

// TestControls runs each wrong implementation until it is found: it is make simulate-controls. CONTROL names one.
func TestControls(t *testing.T) {
	if os.Getenv("CONTROLS") == "" {
		t.Skip("takes minutes: make simulate-controls")
	}
	for _, c := range robustness.Controls() {
		if only := os.Getenv("CONTROL"); c.Kind != "" && cmp.Or(only, c.Kind) == c.Kind {
			t.Run(c.Name, func(t *testing.T) { find(t, []string{c.Kind}, c.Promises) })
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

// find runs schedules until one breaks a promise, and that one twenty times.
func find(t *testing.T, kinds, promises []string) {
	const most, runs = 300, 20
	seeds, promise := 0, ""
	var found *sim.Result
	require.NoError(t, sim.Orders{Seed: 1, Count: most, Kinds: kinds}.Each(func(res *sim.Result) bool {
		seeds++
		for _, f := range res.Faults {
			if found == nil && slices.Contains(promises, f.Promise) {
				found, promise = res, f.Promise
			}
		}
		return found == nil
	}))
	require.NotNil(t, found, "not found in %d seeds", seeds)
	t.Logf("found after %d seeds, by %q; %d of %d runs of seed %d find it", seeds, promise,
		sim.Repeat(found.Seed, kinds, promise, runs), runs, found.Seed)
}
