package sim_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/robustness"
	"github.com/cogwheel-go/cogwheel/robustness/sim"
)

// TestOrders is what the processes run that the other tests start.
func TestOrders(t *testing.T) {
	if !sim.Obey(t) {
		t.Skip("only other tests give orders")
	}
}

// TestSimulate runs the schedules of some seeds. SEED names the first one, DURATION is for how long they run, and
// FLEET leaves out seeds that are no fleets: it is make simulate. Otherwise it runs seeds that are always the same.
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
	record(t, sim.Line{Simulated: &all, Seed: first, Date: now(), Commit: robustness.Commit()})
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
	orders := sim.Orders{Seed: seed, Count: 1 << 30, Fleet: os.Getenv("FLEET") != ""}
	require.NoError(t, orders.Each(func(res *sim.Result) bool {
		all.Add(res)
		if len(res.Faults) > 0 && len(all.Failed) <= explained {
			t.Error(sim.Explain(res, nil, robustness.Commit(), time.Minute))
		}
		return time.Since(began) < lasts
	}))
	all.Took += time.Since(began)
}

func now() time.Time { return time.Now().UTC().Truncate(time.Second) }

// record appends a line to the file that ROBUSTNESS_RESULTS names.
func record(t *testing.T, line any) {
	t.Helper()
	path := os.Getenv("ROBUSTNESS_RESULTS")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	require.NoError(t, err)
	require.NoError(t, json.NewEncoder(f).Encode(line))
	require.NoError(t, f.Close())
}

// note prints and records how a fault was found.
func note(t *testing.T, f sim.Finding) {
	t.Helper()
	f.Date, f.Commit = now(), robustness.Commit()
	fmt.Println(f)
	record(t, f)
}

// TestControls runs each wrong implementation until it is found: it is make simulate-controls. CONTROL names one.
func TestControls(t *testing.T) {
	if os.Getenv("CONTROLS") == "" {
		t.Skip("takes minutes: make simulate-controls")
	}
	for _, c := range robustness.Controls() {
		if only := os.Getenv("CONTROL"); cmp.Or(only, c.Name) != c.Name {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			switch why := elsewhere[c.Kind]; {
			case c.Kind == "":
				note(t, sim.Finding{Finding: c.Name, Elsewhere: "a test of package " + c.Package})
			case why != "":
				note(t, sim.Finding{Finding: c.Name, Elsewhere: fmt.Sprintf("%q of make controls: %s", c.Scenario.Name, why)})
			default:
				find(t, c.Name, sim.Orders{Kinds: []string{c.Kind}}, c.Promises)
			}
		})
	}
}

// elsewhere are wrong implementations that the simulation cannot find, and why.
var elsewhere = map[string]string{
	"acquisition without WAIT":     "there are no replicas here",
	"limit on the client's clock":  "it needs 50 calls a second",
	"limit that begins anew twice": "it needs 50 calls a second",

	"tasks claimed without a lease":  putIntoScripts,
	"tasks cancelled while they run": putIntoScripts,
	"tasks on the client's clock":    putIntoScripts,
}

const putIntoScripts = "here TestPutBack changes the scripts and package delay"

// find runs schedules until one breaks a promise, of those that are named if some are, and that one twenty times.
func find(t *testing.T, name string, orders sim.Orders, promises []string) {
	t.Helper()
	most, runs := 1000, 20
	if len(orders.Kinds) == 0 {
		most = 2000
	}
	seeds, promise := 0, ""
	var found *sim.Result
	orders.Seed, orders.Count = 1, most
	require.NoError(t, orders.Each(func(res *sim.Result) bool {
		if !res.Skipped {
			seeds++
		}
		for _, f := range res.Faults {
			if found == nil && (promises == nil || slices.Contains(promises, f.Promise)) {
				found, promise = res, f.Promise
			}
		}
		return found == nil
	}))
	require.NotNil(t, found, "not found in %d seeds", seeds)
	orders.Count, orders.Schedule = runs, sim.Draw(found.Seed, orders.Kinds...)
	note(t, sim.Finding{Finding: name, Seeds: seeds, By: promise, Again: orders.Repeat(promise), Runs: runs})
}
