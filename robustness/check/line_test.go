package check_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/robustness/history"
)

func TestOvertaken_CountsLaterCallsThatAreGrantedBefore(t *testing.T) {
	t.Parallel()
	waiter := hold(1, 10, 900, 901, 902, 903)
	others := func(n int) (parts [][]history.Event) {
		parts = append(parts, waiter)
		for i := range int64(n) {
			parts = append(parts, hold(uint64(2+i), 100+10*i, 101+10*i, 102+10*i, 103+10*i, 104+10*i))
		}
		return parts
	}
	overtaken := func(patience time.Duration, may int, parts ...[]history.Event) int {
		return len(check.Overtaken(calls(parts...), nil, patience, may))
	}
	require.Zero(t, overtaken(50, 0, waiter))
	require.Zero(t, overtaken(50, 3, others(3)...))
	require.Equal(t, 1, overtaken(50, 2, others(3)...))
	require.Equal(t, 1, overtaken(100, 1, others(3)...), "two of them were granted after the patience")
	require.Zero(t, overtaken(100, 2, others(3)...))
	require.Zero(t, overtaken(50, 0, waiter, hold(2, 5, 100, 101, 102, 103)), "it had come before")
	require.Zero(t, overtaken(50, 0, waiter, hold(2, 15, 990, 991, 992, 993)), "it was granted later")

	stopped := map[int][]check.Span{1: {{From: 20, To: 30}}}
	require.Empty(t, check.Overtaken(calls(others(3)...), stopped, 50, 0), "its process was stopped")
	stopped = map[int][]check.Span{2: {{From: 20, To: 30}}}
	require.Len(t, check.Overtaken(calls(others(3)...), stopped, 50, 0), 1, "the process of another was")
}

func TestOvertaken_CountsFromWhenACallIsTheFirstOfItsClient(t *testing.T) {
	t.Parallel()
	before, behind := hold(1, 5, 400, 401, 402, 403), hold(2, 10, 900, 901, 902, 903)
	behind[0].Client = before[0].Client
	other := func(granted int64) []history.Event {
		return hold(3, 300, granted, granted+1, granted+2, granted+3)
	}
	require.Empty(t, check.Overtaken(calls(behind, other(440), before), nil, 50, 0))
	require.Len(t, check.Overtaken(calls(behind, other(460), before), nil, 50, 0), 1)
}

func TestRunning_AnObjectMayBeFreeWhileItsWaitersAreStopped(t *testing.T) {
	t.Parallel()
	c := calls(hold(1, 1, 2, 10, 11, 12), hold(2, 5, 500, 501, 502, 503))
	stops := map[int][]check.Span{2: {{From: 100, To: 200}}}
	require.Equal(t, check.Waits{1, 488}, check.Free(c, lock, 0, nil))
	require.Equal(t, check.Waits{1}, check.Free(check.Running(c, stops), lock, 0, nil))
	require.Equal(t, check.Waits{1, 488}, check.Free(c, lock, 0, nil), "the calls themselves are as they were")
}
