package robustness_test

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/robustness"
)

// TestPeers runs this library's mutex and its peers side by side, appends the results to the file that
// ROBUSTNESS_RESULTS names, and prints them as a table. It is make peers.
func TestPeers(t *testing.T) {
	if os.Getenv("PEERS") == "" {
		t.Skip("takes minutes: make peers")
	}
	length, err := time.ParseDuration(cmp.Or(os.Getenv("DURATION"), "15s"))
	require.NoError(t, err)
	var mu sync.Mutex
	var results []*robustness.Result
	t.Run("each", func(t *testing.T) {
		for _, k := range robustness.Peers() {
			for _, s := range robustness.PeerScenarios(k, length) {
				t.Run(fmt.Sprintf("%s, seed %d", k.Name, s.Seed), func(t *testing.T) {
					t.Parallel()
					res := s.DoPeer(t)
					mu.Lock()
					defer mu.Unlock()
					results = append(results, res)
					t.Log(res)
				})
			}
		}
	})
	for _, res := range results {
		record(t, res)
	}
	fmt.Print(table(results))
}

// table has a line for each kind and scenario.
func table(results []*robustness.Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-36s|%5s|%8s|%8s|%9s|%12s|%9s|%13s|%10s|%6s|%5s\n", "kind", "seed", "granted", "overlaps",
		"longest", "told late by", "not told", "idle, longest", "keys left", "stale", "lost")
	for _, k := range robustness.Peers() {
		for _, r := range results {
			if r.Kind != k.Name {
				continue
			}
			n := make(map[string]int)
			for _, f := range r.Faults {
				n[f.Promise]++
			}
			fmt.Fprintf(&b, "%-36s|%5d|%8d|%8d|%9v|%12v|%9d|%13v|%10d|%6d|%5d\n", r.Kind, r.Seed, r.Granted, r.Overlaps,
				r.Overlap.Round(time.Millisecond), r.ToldLate.Round(time.Millisecond), n["told in time"],
				r.Idle.Max.Round(time.Millisecond), r.KeysLeft, r.StaleDone, r.Lost)
		}
	}
	return b.String()
}
