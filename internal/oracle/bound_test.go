package oracle_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
)

// perTen allows a burst of 2, and one more in 10 ns.
var perTen = oracle.Limit{Rate: 1, Per: 10, Burst: 2}

// at is a call and its return.
type at [2]int64

// grants makes a grant of one permit for each pair of call and return.
func grants(times ...at) (all []oracle.Grant) {
	for _, t := range times {
		all = append(all, oracle.Grant{Call: t[0], Return: t[1], N: 1})
	}
	return all
}

func TestExcess(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		granted []oracle.Grant
		may     oracle.Bound
		excess  float64
	}{
		"a burst":              {grants(at{0, 0}, at{0, 0}), perTen.BucketBound(), 0},
		"a burst and the rate": {grants(at{0, 0}, at{0, 0}, at{10, 10}, at{20, 20}), perTen.BucketBound(), 0},
		"one too many (control)": {
			grants(at{0, 0}, at{0, 0}, at{0, 0}), perTen.BucketBound(), 1,
		},
		"one too many at the end (control)": {
			grants(at{0, 0}, at{100, 100}, at{100, 100}, at{100, 100}), perTen.BucketBound(), 1,
		},
		"the third may have been before": {grants(at{50, 60}, at{50, 60}, at{0, 60}), perTen.BucketBound(), -1},
		"out of order, one too many (control)": {
			grants(at{105, 105}, at{100, 105}, at{104, 105}, at{101, 104}), perTen.BucketBound(), 1.5,
		},
		"a log, a period apart":           {grants(at{0, 0}, at{10, 10}), perTen.LogBound(), 0},
		"a log, within one (control)":     {grants(at{0, 0}, at{9, 9}), perTen.LogBound(), 1},
		"windows that touch":              {grants(at{9, 9}, at{10, 10}), perTen.WindowsBound(), 0},
		"three within a period (control)": {grants(at{0, 0}, at{9, 9}, at{9, 9}), perTen.WindowsBound(), 1},
	} {
		require.InDelta(t, c.excess, oracle.Excess(c.granted, c.may), 1e-9, what)
	}
	late := grants(at{0, 0}, at{0, 0}, at{100, 100}, at{200, 200}, at{200, 200}, at{200, 200})
	require.InDelta(t, 1, oracle.ExcessWithin(time.Nanosecond, late, perTen.BucketBound()), 1e-9)
	require.InDelta(t, 0, oracle.ExcessWithin(time.Nanosecond, late[:5], perTen.BucketBound()), 1e-9)
}
