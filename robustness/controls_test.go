package robustness_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/robustness"
	"github.com/cogwheel-go/cogwheel/robustness/check"
)

// TestControls runs each wrong implementation, appends the results to the file that
// ROBUSTNESS_RESULTS names, and prints how each was caught. It is make controls.
func TestControls(t *testing.T) {
	if os.Getenv("CONTROLS") == "" {
		t.Skip("takes minutes: make controls")
	}
	all := robustness.Controls()
	caught := make([]*robustness.Caught, len(all))
	var mu sync.Mutex
	right := make(map[*robustness.Scenario]func() []check.Fault) // each runs once
	t.Run("each", func(t *testing.T) {
		for i, c := range all {
			t.Run(c.Name, func(t *testing.T) {
				t.Parallel()
				caught[i] = c.Check(t, func(s *robustness.Scenario, do func() []check.Fault) {
					mu.Lock()
					once := right[s]
					if once == nil {
						once = sync.OnceValue(do)
						right[s] = once
					}
					mu.Unlock()
					require.Empty(t, once(), "the right implementation, %s, does not pass: the control proves nothing", s.Kind)
				})
			})
		}
	})
	var table strings.Builder
	n := 0
	for i, c := range all {
		res := caught[i].Result(c)
		by := "NOT CAUGHT"
		if res.Caught {
			by, n = res.By, n+1
		}
		fmt.Fprintf(&table, "%-42s | %-75s | %s\n", c.Name, res.Where, by)
		if res.Caught && caught[i].Example != "" {
			fmt.Fprintf(&table, "%-42s |   %s\n", "", caught[i].Example)
		}
		record(t, res)
	}
	fmt.Printf("\n%scaught %d of %d\n", table.String(), n, len(all))
	require.Equal(t, len(all), n)
}
