package sim_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/robustness"
	"github.com/cogwheel-go/cogwheel/robustness/sim"
)

// Fleets of 3 to 50 processes on few names break no promise of their lines.
func TestFleets_BreakNoPromise(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 10 seconds")
	}
	t.Parallel()
	var all sim.Figures
	require.NoError(t, sim.Orders{Seed: 1, Count: 200, Fleet: true}.Each(func(res *sim.Result) bool {
		all.Add(res)
		if len(res.Faults) > 0 {
			t.Error(sim.Explain(res, nil, robustness.Commit(), 20*time.Second))
		}
		return len(all.Failed) == 0
	}))
	t.Log(&all)
}
