package check_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// perTen allows a burst of 2, and one more in 10 ns.
func perTen(d time.Duration) float64 { return 2 + float64(d)/10 }

// at is a call and its return.
type at [2]int64

// grants makes a grant of one permit for each pair of call and return.
func grants(times ...at) (calls []*history.Call) {
	for _, t := range times {
		calls = append(calls, &history.Call{
			Event: history.Event{At: t[0], N: 1, Object: "limit"}, Outcome: history.Granted, Return: t[1],
		})
	}
	return calls
}

func TestLimit(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		granted []*history.Call
		excess  float64
	}{
		"a burst":                              {grants(at{0, 0}, at{0, 0}), 0},
		"a burst and the rate":                 {grants(at{0, 0}, at{0, 0}, at{10, 10}, at{20, 20}), 0},
		"one too many (control)":               {grants(at{0, 0}, at{0, 0}, at{0, 0}), 1},
		"one too many at the end (control)":    {grants(at{0, 0}, at{100, 100}, at{100, 100}, at{100, 100}), 1},
		"the third may have been before":       {grants(at{50, 60}, at{50, 60}, at{0, 60}), -1},
		"out of order, one too many (control)": {grants(at{105, 105}, at{100, 105}, at{104, 105}, at{101, 104}), 1.5},
	} {
		require.InDelta(t, c.excess, check.Excess(c.granted, perTen), 1e-9, what)
		require.Equal(t, c.excess > 0, len(check.Limit(c.granted, perTen, 0, 2)) > 0, what)
		require.Empty(t, check.Limit(c.granted, perTen, 1, 2), "%s: a loss of data allows one burst", what)
	}
}
