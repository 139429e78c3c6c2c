package check_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/robustness/history"
)

var lock = check.Rules{Capacity: 1, Lease: 100}

// hold makes the events of a hold that its client released.
func hold(id uint64, called, granted, relied, release, released int64) []history.Event {
	return []history.Event{
		{Step: history.Called, ID: id, Client: history.ClientID(int(id), 0), Object: "lock", At: called},
		{Step: history.Granted, ID: id, At: granted, Token: int64(id)},
		{Step: history.Relied, ID: id, At: relied},
		{Step: history.Release, ID: id, At: release},
		{Step: history.Released, ID: id, At: released},
	}
}

// calls folds the events of several calls.
func calls(parts ...[]history.Event) []*history.Call {
	var h history.History
	for _, part := range parts {
		for _, e := range part {
			h.Add(e)
		}
	}
	return history.Calls(h.Events())
}

func linear(c []*history.Call, r check.Rules) []check.Fault {
	return check.Linear(c, r, 0, time.Minute)
}

func TestChecks_OneAfterTheOther(t *testing.T) {
	t.Parallel()
	c := calls(hold(1, 10, 20, 30, 40, 50), hold(2, 15, 45, 60, 70, 80), hold(3, 12, 90, 95, 96, 97))
	_, most, faults := check.Overlap(c, lock)
	require.Empty(t, faults)
	require.EqualValues(t, 1, most)
	require.Empty(t, linear(c, lock))
	require.Empty(t, check.Tokens(c))
	waits := check.Free(c, lock, 0, nil)
	require.Equal(t, check.Waits{10, 10}, waits, "before the first, and after the second")
}

func TestChecks_FindTwoHolders(t *testing.T) {
	t.Parallel()
	c := calls(hold(1, 10, 20, 50, 60, 70), hold(2, 15, 40, 45, 75, 80))
	longest, most, faults := check.Overlap(c, lock)
	require.Len(t, faults, 1)
	require.EqualValues(t, 2, most)
	require.EqualValues(t, 5, longest)
	require.Len(t, linear(c, lock), 1)
	require.Empty(t, linear(c, check.Rules{Capacity: 2, Lease: 100}), "weight 0")
}
