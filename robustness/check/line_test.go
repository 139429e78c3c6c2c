package check_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// late makes a hold of a client that was called and granted at these milliseconds.
func late(id uint64, client int, called, granted int64) []history.Event {
	events := hold(id, 0, 0, 1, 2, 3)
	for i := range events {
		events[i].At += granted * int64(time.Millisecond)
	}
	events[0].At, events[0].Client = called*int64(time.Millisecond), history.ClientID(client, 0)
	return events
}

func TestOvertaken_CountsLaterCallsThatAreGrantedBefore(t *testing.T) {
	t.Parallel()
	waiter := late(1, 1, 10, 900)
	others := func(n int) (parts [][]history.Event) {
		parts = append(parts, waiter)
		for i := range int64(n) {
			parts = append(parts, late(uint64(2+i), 2+int(i), 100+10*i, 101+10*i))
		}
		return parts
	}
	const ms = time.Millisecond
	overtaken := func(patience time.Duration, may int, parts ...[]history.Event) int {
		return len(check.Overtaken(calls(parts...), lock, nil, patience, may))
	}
	require.Zero(t, overtaken(50*ms, 0, waiter))
	require.Zero(t, overtaken(50*ms, 3, others(3)...))
	require.Equal(t, 1, overtaken(50*ms, 2, others(3)...))
	require.Equal(t, 1, overtaken(100*ms, 1, others(3)...), "two of them were granted after the patience")
	require.Zero(t, overtaken(100*ms, 2, others(3)...))
	require.Zero(t, overtaken(50*ms, 0, waiter, late(2, 2, 5, 100)), "it had come before")
	require.Zero(t, overtaken(50*ms, 0, waiter, late(2, 2, 12, 100)), "it came at about the same time")
	require.Equal(t, 1, overtaken(50*ms, 0, waiter, late(2, 2, 14, 100)))
	require.Zero(t, overtaken(50*ms, 0, waiter, late(2, 2, 15, 990)), "it was granted later")

	again := late(3, 2, 120, 300)
	require.Equal(t, 1, overtaken(50*ms, 0, waiter, late(2, 2, 5, 100), late(4, 3, 5, 200), again))
	require.Zero(t, overtaken(50*ms, 0, waiter, late(2, 2, 5, 100), again), "handed over within its client")

	gaveUp := late(2, 2, 5, 150)
	gaveUp = append(gaveUp[:1], history.Event{Step: history.Failed, ID: 2, At: int64(150 * ms)})
	require.Zero(t, overtaken(50*ms, 0, waiter, gaveUp, late(3, 2, 100, 200)), "it has the place of one that gave up")

	stopped := map[int][]check.Span{1: {{From: int64(20 * ms), To: int64(30 * ms)}}}
	require.Empty(t, check.Overtaken(calls(others(3)...), lock, stopped, 50*ms, 0), "its process was stopped")
	stopped = map[int][]check.Span{2: {{From: int64(20 * ms), To: int64(30 * ms)}}}
	require.Len(t, check.Overtaken(calls(others(3)...), lock, stopped, 50*ms, 0), 1, "the process of another was")
}

func TestOvertaken_CountsFromWhenACallIsTheFirstOfItsClient(t *testing.T) {
	t.Parallel()
	before, behind := late(1, 1, 5, 400), late(2, 1, 10, 900)
	other := func(granted int64) []history.Event { return late(3, 3, 300, granted) }
	require.Empty(t, check.Overtaken(calls(behind, other(440), before), lock, nil, 50*time.Millisecond, 0))
	require.Len(t, check.Overtaken(calls(behind, other(460), before), lock, nil, 50*time.Millisecond, 0), 1)
}

func TestRunning_AnObjectMayBeFreeWhileItsWaitersAreStopped(t *testing.T) {
	t.Parallel()
	c := calls(hold(1, 1, 2, 10, 11, 12), hold(2, 5, 500, 501, 502, 503))
	stops := map[int][]check.Span{2: {{From: 100, To: 200}}}
	require.Equal(t, check.Waits{1, 488}, check.Free(c, lock, 0, nil))
	require.Equal(t, check.Waits{1}, check.Free(check.Running(c, stops), lock, 0, nil))
	require.Equal(t, check.Waits{1, 488}, check.Free(c, lock, 0, nil), "the calls themselves are as they were")
}
