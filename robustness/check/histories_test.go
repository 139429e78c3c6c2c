package check_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// edit changes the events of a call.
func edit(events []history.Event, f func(e *history.Event)) []history.Event {
	for i := range events {
		f(&events[i])
	}
	return events
}

// owned gives a call an owner.
func owned(owner uint64, events []history.Event) []history.Event {
	events[0].Owner = owner
	return events
}

// shared makes a call that of a reader.
func shared(events []history.Event) []history.Event {
	events[0].Shared = true
	return edit(events, func(e *history.Event) { e.Token = 0 })
}

// permits makes a call one for n permits.
func permits(n int64, events []history.Event) []history.Event {
	events[0].N = n
	return edit(events, func(e *history.Event) { e.Token = 0 })
}

// attempt makes a call that ended without a hold.
func attempt(id uint64, step history.Step, called, returned int64) []history.Event {
	return []history.Event{
		{Step: history.Called, ID: id, Client: history.ClientID(int(id), 0), Object: "lock", N: 1, At: called, Try: step == history.Refused},
		{Step: step, ID: id, At: returned},
	}
}

// gaveUp makes a call that waited until its context ended.
func gaveUp(id uint64, called, returned int64) []history.Event {
	events := attempt(id, history.Refused, called, returned)
	events[0].Try = false
	return events
}

// lost makes a hold that its client was told to have lost, and found so when it released it.
func lost(called, granted, relied, told int64) []history.Event {
	events := hold(1, called, granted, relied, told, 300)
	events[3].Step, events[4].Step = history.Told, history.Lost
	return events
}

// promises are those that the checks of exclusion find broken.
func promises(c []*history.Call, r check.Rules) (names []string) {
	_, _, faults := check.Overlap(c, r)
	faults = append(faults, check.Tokens(c)...)
	faults = append(faults, linear(c, r)...)
	for _, f := range faults {
		names = append(names, f.Promise)
	}
	return names
}

func TestChecks_Exclusion(t *testing.T) {
	t.Parallel()
	three := check.Rules{Capacity: 3, Lease: 100}
	cases := []struct {
		name  string
		rules check.Rules
		calls []*history.Call
		want  []string
	}{
		{"readers share", lock, calls(shared(hold(1, 1, 2, 50, 51, 60)), shared(hold(2, 3, 4, 40, 41, 42))), nil},
		{"a writer excludes readers", lock, calls(shared(hold(1, 1, 2, 50, 51, 60)), hold(2, 3, 10, 40, 41, 42)), []string{"overlap", "linearizable"}},
		{"an owner enters again", lock, calls(owned(7, hold(1, 1, 2, 50, 51, 60)), owned(7, hold(2, 3, 10, 40, 41, 42))), nil},
		{"an owner reads below its own write", lock, calls(owned(7, hold(1, 1, 2, 50, 51, 60)), owned(7, shared(hold(2, 3, 10, 40, 41, 42)))), nil},
		{"one owner excludes another", lock, calls(owned(7, hold(1, 1, 2, 50, 51, 60)), owned(8, hold(2, 3, 10, 40, 41, 42))), []string{"overlap", "linearizable"}},
		{
			"an owner holds until its last release", lock,
			calls(owned(7, hold(1, 1, 2, 20, 21, 22)), owned(7, hold(2, 3, 10, 60, 61, 62)), owned(8, hold(3, 25, 30, 40, 41, 42))),
			[]string{"overlap", "linearizable"},
		},
		{"as many permits as there are", three, calls(permits(2, hold(1, 1, 2, 50, 51, 60)), permits(1, hold(2, 3, 10, 40, 41, 42))), nil},
		{"a permit too many", three, calls(permits(2, hold(1, 1, 2, 50, 51, 60)), permits(2, hold(2, 3, 10, 40, 41, 42))), []string{"overlap", "linearizable"}},
		{"a token that does not increase", lock, calls(hold(2, 1, 2, 10, 11, 12), hold(1, 20, 21, 22, 23, 24)), []string{"tokens increase", "linearizable"}},
		{"a refusal while it is held", lock, calls(hold(1, 1, 2, 50, 51, 60), attempt(2, history.Refused, 5, 8)), nil},
		{"a refusal while it is free", lock, calls(hold(1, 1, 2, 50, 51, 60), attempt(2, history.Refused, 70, 80)), []string{"linearizable"}},
		{
			"a refusal after a waiter gave up, which may hold it", lock,
			calls(gaveUp(1, 1, 72), attempt(2, history.Refused, 70, 80)), nil,
		},
		{
			"a refusal long after a waiter gave up", lock,
			calls(gaveUp(1, 1, 2), attempt(2, history.Refused, 2e9, 2e9+10)),
			[]string{"linearizable"},
		},
		{"a waiter that gave up while it was free: Free measures that", lock, calls(gaveUp(1, 1, 2)), nil},
		{
			"a refusal while a failed call may hold it", lock,
			calls(attempt(1, history.Failed, 1, 72), attempt(2, history.Refused, 70, 80)), nil,
		},
		{
			"a grant that was never relied on overlaps with nothing", lock,
			calls(append(attempt(1, history.Granted, 1, 30), history.Event{Step: history.Release, ID: 1, At: 31}, history.Event{Step: history.Lost, ID: 1, At: 32}), hold(2, 3, 10, 40, 41, 42)),
			nil,
		},
		{"a hold that outlives its lease unnoticed", lock, calls(hold(1, 1, 2, 400, 401, 402), hold(2, 200, 210, 220, 221, 222)), []string{"overlap", "linearizable"}},
		{"a hold that was lost, and then another's", lock, calls(lost(1, 2, 90, 95), hold(2, 3, 110, 220, 221, 222)), nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			require.ElementsMatch(t, c.want, promises(c.calls, c.rules))
		})
	}
}

func TestStore_FindsWritesThatAreStale(t *testing.T) {
	t.Parallel()
	write := func(id uint64, step history.Step, at, seq int64) []history.Event {
		return []history.Event{{Step: step, ID: id, At: at, Seq: seq}}
	}
	two := [][]history.Event{hold(1, 1, 2, 20, 21, 22), hold(2, 3, 30, 50, 51, 52)}
	check2 := func(parts ...[]history.Event) (int, int, []check.Fault) {
		return check.Store(calls(append(two[:2:2], parts...)...))
	}

	tried, done, faults := check2(write(1, history.Wrote, 10, 1), write(2, history.Wrote, 40, 2), write(1, history.Rejected, 60, 3))
	require.Empty(t, faults)
	require.Equal(t, []int{1, 0}, []int{tried, done})

	_, done, faults = check2(write(2, history.Wrote, 40, 1), write(1, history.Wrote, 60, 2))
	require.Equal(t, 1, done)
	require.Equal(t, "no stale write", faults[0].Promise)

	_, _, faults = check2(write(2, history.Rejected, 40, 1))
	require.Equal(t, "no write of a holder is rejected", faults[0].Promise)
}

func TestInTime_FindsLossesThatAreToldLate(t *testing.T) {
	t.Parallel()
	late := func(stops map[int][]check.Span, parts ...[]history.Event) []check.Fault {
		_, faults := check.InTime(calls(parts...), lock, stops, 5)
		return faults
	}
	next := hold(2, 3, 110, 220, 221, 222)
	require.Empty(t, late(nil, lost(1, 2, 90, 95), next), "before")
	require.Empty(t, late(nil, lost(1, 2, 90, 114), next), "within the slack")
	require.Len(t, late(nil, lost(1, 2, 90, 150), next), 1, "after")
	require.Empty(t, late(map[int][]check.Span{1: {{From: 100, To: 149}}}, lost(1, 2, 90, 150), next), "stopped")
	require.Len(t, late(map[int][]check.Span{2: {{From: 100, To: 149}}}, lost(1, 2, 90, 150), next), 1, "another was stopped")
	require.Len(t, late(nil, hold(1, 1, 2, 90, 150, 300), next), 1, "never told, and released afterwards")
	require.Empty(t, late(nil, shared(lost(1, 2, 90, 150)), shared(hold(2, 3, 110, 220, 221, 222))), "readers do not conflict")
	require.Empty(t, late(nil, owned(7, lost(1, 2, 90, 150)), owned(7, next)), "one owner")
	unused := append(attempt(2, history.Granted, 3, 110), history.Event{Step: history.Release, ID: 2, At: 111})
	require.Empty(t, late(nil, lost(1, 2, 90, 150), unused), "a grant that came too late itself")
}

func TestStops_AreThoseOfEachProcess(t *testing.T) {
	t.Parallel()
	at := func(step history.Step, process int, at int64) history.Event {
		return history.Event{Step: step, Client: history.ClientID(process, 0), At: at}
	}
	stops := check.Stops([]history.Event{
		at(history.Stopped, 1, 5), at(history.Stopped, 2, 6), at(history.Resumed, 1, 7), at(history.Stopped, 1, 9),
	})
	require.Equal(t, map[int][]check.Span{1: {{5, 7}, {9, history.Never}}, 2: {{6, history.Never}}}, stops)
	require.Equal(t, []check.Span{{5, 7}, {6, history.Never}, {9, history.Never}}, check.All(stops))
}

func TestKept_FindsLossesWithoutACause(t *testing.T) {
	t.Parallel()
	released := hold(2, 3, 110, 220, 221, 222)
	require.Empty(t, check.Kept(calls(hold(1, 1, 2, 90, 95, 300), released), lock, nil))
	require.Empty(t, check.Kept(calls(lost(1, 2, 90, 95), released), lock, []check.Span{{From: 50, To: 60}}))
	require.Len(t, check.Kept(calls(lost(1, 2, 90, 95), released), lock, nil), 1)
	require.Len(t, check.Kept(calls(lost(201, 202, 290, 295)), lock, []check.Span{{From: 50, To: 60}}), 1, "a cause long ago")
	// A stranger released the hold of call 1, which call 2 took then: call 1 learns of it when it releases.
	stranger := hold(1, 1, 2, 30, 60, 61)
	stranger[4].Step = history.Lost
	require.Len(t, check.Kept(calls(stranger, hold(2, 3, 40, 50, 51, 52)), lock, nil), 1)
}

func TestFree_WhileOthersGiveUpAllTheTime(t *testing.T) {
	t.Parallel()
	parts := [][]history.Event{hold(1, 1, 2, 10, 11, 12), attempt(2, history.Failed, 5, 5000)}
	for i := range int64(100) {
		parts = append(parts, attempt(uint64(3+i), history.Failed, 20+40*i, 50+40*i))
	}
	c := calls(parts...)
	longest := func(w check.Waits) time.Duration { return w.Quantile(1) }
	require.LessOrEqual(t, longest(check.Free(c, lock, 0, nil)), time.Duration(1), "it may be held all the time")
	stuck := check.Progress(c, lock, 0, nil)
	require.EqualValues(t, 4988, longest(stuck), "but these calls do not explain that no other is granted")
	require.Len(t, check.NoneStrands(stuck, 1000), 1)
	require.EqualValues(t, 3800, longest(check.Progress(c, lock, 0, []check.Span{{From: 1000, To: 1200}})), "a fault lasts")
}

func TestFree_ADeadHolderKeepsItForALease(t *testing.T) {
	t.Parallel()
	dead := append(attempt(1, history.Granted, 1, 2), history.Event{Step: history.Killed, Client: history.ClientID(1, 0), At: 10})
	next := hold(2, 5, 150, 160, 161, 162)
	require.Equal(t, check.Waits{1, 40}, check.Free(calls(dead, next), lock, 0, nil), "before the first returned, and after the lease")
}

func TestRefusals_CountsWhatIsChecked(t *testing.T) {
	t.Parallel()
	c := calls(hold(1, 1, 2, 50, 51, 60), attempt(2, history.Refused, 5, 8), attempt(3, history.Failed, 20, 30), attempt(4, history.Refused, 25, 35))
	refused, checked := check.Refusals(c, lock, 0)
	require.Equal(t, []int{2, 1}, []int{refused, checked})
	_, checked = check.Refusals(c, check.Rules{Capacity: 3, Fair: true}, 0)
	require.Zero(t, checked)
}

// A release keeps a lock for a waiter that it wakes, which may not hear.
func TestRefusals_WhileALockIsKeptForAWaiter(t *testing.T) {
	t.Parallel()
	const ms = int64(time.Millisecond)
	wide := check.Rules{Capacity: 1, Lease: time.Hour}
	refused := func(at int64) []history.Event { return attempt(3, history.Refused, at*ms, (at+1)*ms) }
	waits := func(since int64) []history.Event { return hold(5, since*ms, 200*ms, 201*ms, 202*ms, 203*ms) }
	linear := func(parts ...[]history.Event) []check.Fault {
		parts = append([][]history.Event{hold(1, 1*ms, 2*ms, 9*ms, 10*ms, 11*ms)}, parts...)
		parts = append(parts, hold(4, 100*ms, 101*ms, 102*ms, 103*ms, 104*ms))
		return check.Linear(calls(parts...), wide, 0, time.Minute)
	}
	require.Empty(t, linear(waits(5), refused(12)))
	require.NotEmpty(t, linear(waits(5), refused(75)), "it is kept for 50 ms")
	require.NotEmpty(t, linear(refused(12), waits(14)), "nobody waited")
}

// A search that takes too long proves nothing.
func TestLinear_UndecidedIsAFault(t *testing.T) {
	t.Parallel()
	var parts [][]history.Event
	for i := range uint64(400) { // all at once, of which one more is held than there is room for
		parts = append(parts, permits(1, hold(i+1, 1, 1000+int64(i), 2000, 2001+int64(i), 3000)))
	}
	faults := check.Linear(calls(parts...), check.Rules{Capacity: 399, Lease: time.Hour}, 0, 50*time.Millisecond)
	require.Len(t, faults, 1)
	require.Contains(t, faults[0].Detail, "undecided")
}

func TestLinear_ExplainsWhatItFinds(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("ROBUSTNESS_DIR", dir)
	faults := linear(calls(hold(1, 10, 20, 50, 60, 70), hold(2, 15, 40, 45, 75, 80)), lock)
	require.Len(t, faults, 1)
	require.Contains(t, faults[0].Detail, dir)
	for _, pattern := range []string{"lock-*.html", "lock-*.json"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		require.NoError(t, err)
		require.Len(t, files, 1)
		text, err := os.ReadFile(files[0])
		require.NoError(t, err)
		require.NotEmpty(t, text)
	}
}
