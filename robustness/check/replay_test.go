package check_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/robustness/check"
)

const second = int64(time.Second)

// five are five permits a second.
var five = oracle.Limit{Rate: 5, Per: time.Second, Burst: 5}

// grant is a request that the server granted at an instant, a hundredth of a second after its call.
func grant(at, n int64, r oracle.Limit) *check.Ask {
	return &check.Ask{
		N: n, Limit: r, Least: r, Called: at - second/100, Return: at + second/100, Instants: []int64{at}, Granted: true,
	}
}

// denial is a request for a permit that was denied at an instant.
func denial(at int64, r oracle.Limit, retry time.Duration) *check.Ask {
	a := grant(at, 1, r)
	a.Granted, a.Denied, a.Retry = false, true, retry
	return a
}

func bucket() oracle.Algorithm  { return new(oracle.Bucket) }
func windows() oracle.Algorithm { return new(oracle.Windows) }
func slides() oracle.Algorithm  { return new(oracle.SlidingLog) }

// either has windows that may end 2 ms early.
func either() oracle.Algorithm {
	return check.Either{new(oracle.Windows), &oracle.Windows{Early: second / 500}}
}

// weighed has windows that begin in the middle of each second.
func weighed() oracle.Algorithm { return &oracle.SlidingWindow{Epoch: 3*second - second/2} }

func TestReplay_KeepsTheDefinition(t *testing.T) {
	t.Parallel()
	waiter := grant(second+second/2, 1, five) // asked within the first window, for a permit of the next
	waiter.Waits, waiter.Return = true, 2*second
	lowered := oracle.Limit{Rate: 2, Per: time.Second, Burst: 2}
	for what, c := range map[string]struct {
		of     func() oracle.Algorithm
		asks   []*check.Ask
		resets []int64
		broken int
	}{
		"a bucket, full and refilled": {
			of: bucket, asks: []*check.Ask{grant(second, 5, five), grant(second+second/5, 1, five)},
		},
		"a bucket, one too early (control)": {
			of: bucket, asks: []*check.Ask{grant(second, 5, five), grant(second+second/6, 1, five)}, broken: 1,
		},
		"a bucket that was forgotten": {
			of: bucket, asks: []*check.Ask{grant(second, 5, five), grant(second+2, 5, five)}, resets: []int64{second + 1},
		},
		"windows, one after the other": {
			of: windows, asks: []*check.Ask{grant(second, 5, five), grant(2*second, 5, five)},
		},
		"a window, one too many (control)": {
			of: windows, asks: []*check.Ask{grant(second, 5, five), grant(2*second-second/50, 1, five)}, broken: 1,
		},
		"a window that a waiter opens for its time": {
			of: windows, asks: []*check.Ask{grant(second, 5, five), waiter, grant(2*second+1, 4, five)},
		},
		"a window that a waiter opens, from which others are granted before its time (control)": {
			of: windows, asks: []*check.Ask{grant(second, 5, five), waiter, grant(2*second-second/50, 4, five)}, broken: 1,
		},
		"a window under a lower limit (control)": {
			of: windows, asks: []*check.Ask{grant(second, 2, five), grant(second+second/2, 1, lowered)}, broken: 1,
		},
		"a log, as entries leave": {
			of: slides, asks: []*check.Ask{grant(second, 2, five), grant(second+second/2, 3, five), grant(2*second, 2, five)},
		},
		"a log, before they leave (control)": {
			of: slides, asks: []*check.Ask{grant(second, 2, five), grant(second+second/2, 3, five), grant(2*second, 3, five)}, broken: 1,
		},
		"a sliding window, as the share of the one before falls": {
			of: weighed, asks: []*check.Ask{
				grant(second, 5, five), grant(second+7*second/10, 1, five), grant(second+9*second/10, 1, five),
			},
		},
		"a sliding window, before it falls (control)": {
			of: weighed, asks: []*check.Ask{
				grant(second, 5, five), grant(second+7*second/10, 1, five), grant(second+9*second/10-1, 1, five),
			}, broken: 1,
		},
		"a sliding window, one too many in it (control)": {
			of: weighed, asks: []*check.Ask{grant(second, 5, five), grant(second+second/2-1, 1, five)}, broken: 1,
		},
		"a sliding window, two periods later": {
			of: weighed, asks: []*check.Ask{grant(second, 5, five), grant(2*second+second/2, 5, five)},
		},
	} {
		require.Len(t, check.Replay(c.of, c.asks, c.resets, nil, 0), c.broken, what)
	}
}

func TestDenials_AreForWantOfPermits(t *testing.T) {
	t.Parallel()
	lowered := oracle.Limit{Rate: 2, Per: time.Second, Burst: 2}
	stranded := grant(5*second, 1, five)
	stranded.Called, stranded.Waits = second+second/10, true
	for what, c := range map[string]struct {
		of     func() oracle.Algorithm
		asks   []*check.Ask
		broken string
	}{
		"an empty bucket":                         {bucket, []*check.Ask{grant(second, 5, five), denial(second+1, five, time.Second/5)}, ""},
		"a bucket with permits (control)":         {bucket, []*check.Ask{grant(second, 3, five), denial(second+1, five, 0)}, "a denial is true"},
		"a bucket whose delay is wrong (control)": {bucket, []*check.Ask{grant(second, 5, five), denial(second+1, five, time.Second)}, "RetryAfter is not too long"},
		"a window that ended a little sooner, or did not": {
			either, []*check.Ask{
				grant(second, 1, five), grant(2*second-second/1000, 3, five), grant(2*second+second/2, 2, five),
				denial(2*second+2*second/3, five, time.Second/3),
				grant(5*second, 4, five), grant(6*second-second/1000, 1, five), grant(6*second+second/10, 5, five),
				denial(6*second+second/2, five, 6*time.Second/10),
			}, "",
		},
		"a window under a lower limit": {windows, []*check.Ask{grant(second, 5, five), denial(second+2, lowered, time.Second)}, ""},
		"a window whose debt is of later ones (control)": {
			windows, []*check.Ask{grant(second, 5, five), denial(second+2, lowered, 3*time.Second)}, "RetryAfter is not too long",
		},
		"a sliding window whose delay is wrong (control)": {
			weighed, []*check.Ask{grant(second, 5, five), denial(second+2, five, 8*time.Second/10)}, "RetryAfter is not too long",
		},
		"a sliding window that is full": {
			weighed, []*check.Ask{grant(second, 5, five), denial(second+2, five, 7*time.Second/10)}, "",
		},
		"a waiter that is forgotten (control)": {windows, []*check.Ask{grant(second, 5, five), stranded}, "no waiter is stranded"},
	} {
		faults := check.Denials(c.of, c.asks, nil, nil, nil, second/50, second)
		if c.broken == "" {
			require.Empty(t, faults, what)
			continue
		}
		require.Len(t, faults, 1, what)
		require.Equal(t, c.broken, faults[0].Promise, what)
	}
}

// What was asked for after a request of unknown outcome explains any denial.
func TestDenials_AreNotJudgedAfterARequestOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	unknown := grant(second, 1, five)
	unknown.Granted, unknown.Unsure = false, true
	wrong := denial(2*second, five, 0)
	require.Len(t, check.Denials(bucket, []*check.Ask{wrong}, nil, nil, nil, 0, second), 1)
	require.Empty(t, check.Denials(bucket, []*check.Ask{unknown, wrong}, nil, nil, nil, 0, second))
}
