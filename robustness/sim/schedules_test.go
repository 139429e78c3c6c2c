package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/robustness/sim"
)

// Schedules that random ones seldom resemble, each of which met a fault of the library once.
func TestSchedules_ThatMetFaultsBreakNoPromise(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	s := sim.Schedule{
		Processes: 1, Lease: 30 * time.Second, Poll: time.Second, Tick: ms, Least: ms / 5, Most: ms / 5,
		Timeout: time.Second, Retries: -1, Policy: "closed", Length: 20 * time.Second,
	}
	for i := range 6 {
		s.Objects = append(s.Objects, sim.Object{Kind: "mutex", Name: fmt.Sprint("mutex-", i)})
	}
	try := func(at time.Duration, object int) sim.Op {
		return sim.Op{At: at, Object: object, Action: sim.Try, N: 1, Hold: 10 * ms}
	}

	silent := s // two connections fall silent, and six calls come at once
	silent.Faults = []sim.Fault{{At: time.Second, Kind: "connections silent"}}
	silent.Ops = []sim.Op{try(500*ms, 0), try(500*ms, 1)}
	for i := range s.Objects {
		silent.Ops = append(silent.Ops, try(time.Second+time.Duration(i+1)*ms, i))
	}

	full := s // a release is lost while the wheel is full
	full.Ops = []sim.Op{{At: 500 * ms, Action: sim.Take, N: 1, Hold: time.Second}}
	full.Faults = []sim.Fault{
		{At: time.Second, Kind: "wheel full", For: 6 * time.Second},
		{At: 1400 * ms, Kind: "requests lost", N: 12},
	}

	for name, schedule := range map[string]sim.Schedule{
		"calls waited for those on silent connections":       silent,
		"a full wheel dropped the timer of a failed release": full,
	} {
		require.NoError(t, sim.Orders{Schedule: &schedule, Count: 3}.Each(func(res *sim.Result) bool {
			require.Empty(t, res.Faults, name)
			return true
		}))
	}
}
