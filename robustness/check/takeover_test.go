package check_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// died makes the events of a hold whose process was killed.
func died(id uint64, called, granted, relied, killed int64) []history.Event {
	client := history.ClientID(int(id), 0)
	return []history.Event{
		{Step: history.Called, ID: id, Client: client, Object: "lock", At: called},
		{Step: history.Granted, ID: id, At: granted},
		{Step: history.Relied, ID: id, At: relied},
		{Step: history.Killed, Client: client, At: killed},
	}
}

func TestTakeovers_CountFromTheDeathWithoutTheLease(t *testing.T) {
	t.Parallel()
	c := calls(died(1, 10, 20, 30, 40), hold(2, 15, 150, 160, 170, 180))
	require.Equal(t, check.Waits{10}, check.Takeovers(c, lock, nil))
	require.Empty(t, check.Takeovers(c, lock, []check.Span{{From: 50, To: 60}}), "another fault lasted")
	require.Equal(t, check.Waits{10}, check.Takeovers(c, lock, []check.Span{{From: 35, To: 60}}), "that of the kill")
	require.Empty(t, check.Takeovers(calls(died(1, 10, 20, 30, 40)), lock, nil), "nothing was asked for")
}

func TestTold_BeforeOrAfterTheNextGrant(t *testing.T) {
	t.Parallel()
	told := func(at int64) []history.Event {
		return append(died(1, 10, 20, 30, 900)[:3], history.Event{Step: history.Told, ID: 1, At: at})
	}
	next := hold(2, 15, 150, 160, 170, 180)
	for what, c := range map[string]struct {
		told        int64
		spans       []check.Span
		first, late int
	}{
		"in time":                          {told: 120, first: 1},
		"too late":                         {told: 155, late: 1},
		"too late while its process stood": {told: 155, spans: []check.Span{{From: 100, To: 152}}},
	} {
		first, late := check.Told(calls(told(c.told), next), lock, c.spans)
		require.Equal(t, c.first, first, what)
		require.Equal(t, c.late, late, what)
	}
}
