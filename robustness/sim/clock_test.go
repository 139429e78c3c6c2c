package sim_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/robustness/sim"
)

func TestClock_AStepOfTheWallClockLeavesTheMonotonicReading(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, time.July, 1, 2, 3, 4, 567, time.Local)
	require.True(t, now.Equal(sim.TwoClocks(now, time.Second)))
	require.Equal(t, now.String()+" m=+1.000000000", sim.TwoClocks(now, time.Second).String())
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		before, after := sim.TwoClocks(now, time.Second), sim.TwoClocks(now.Add(by), 3*time.Second)
		require.Equal(t, 2*time.Second, after.Sub(before), "the difference of the monotonic readings")
		require.Equal(t, by, after.Round(0).Sub(before.Round(0)))
	}
}
