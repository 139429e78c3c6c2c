package robustness

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/stretchr/testify/require"
)

// saveIfFailed keeps what explains a run that failed, in a folder below the one that ROBUSTNESS_DIR names: the
// events as lines of JSON, the logs of the servers, and the scenario with its seed and the commit.
func (r *Run) saveIfFailed() {
	root := os.Getenv("ROBUSTNESS_DIR")
	if !r.tb.Failed() || root == "" {
		return
	}
	dir := filepath.Join(root, fmt.Sprintf("seed-%d-%s", r.Seed, Commit()))
	require.NoError(r.tb, os.MkdirAll(dir, 0o755))
	write := func(name string, lines func(*json.Encoder) error) {
		f, err := os.Create(filepath.Join(dir, name))
		require.NoError(r.tb, err)
		defer f.Close()
		require.NoError(r.tb, lines(json.NewEncoder(f)))
	}
	write("events.jsonl", func(out *json.Encoder) (err error) {
		for _, e := range r.history.Events() {
			if err = out.Encode(e); err != nil {
				break
			}
		}
		return err
	})
	write("scenario.json", func(out *json.Encoder) error {
		names := make([]string, 0, len(r.Scenario.Faults))
		for _, f := range r.Scenario.Faults {
			names = append(names, f.Name)
		}
		return out.Encode(struct {
			Name, Kind string
			Topology   Topology
			Seed       uint64
			Commit     string
			Faults     []string
		}{r.Name, r.Kind, r.Topology, r.Seed, Commit(), names})
	})
	for i, s := range r.servers {
		logs, err := filepath.Glob(filepath.Join(s.Dir(), "*.log"))
		require.NoError(r.tb, err)
		for _, log := range logs {
			text, err := os.ReadFile(log)
			require.NoError(r.tb, err)
			require.NoError(r.tb, os.WriteFile(filepath.Join(dir, fmt.Sprintf("server-%d.log", i)), text, 0o644))
		}
	}
	r.tb.Logf("saved in %s", dir)
}
