package robustness_test

import (
	"cmp"
	"encoding/json"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/robustness"
)

func TestMain(m *testing.M) {
	if robustness.RunProcess() {
		return
	}
	redistest.Main(m)
}

// long skips a test but under make robustness, which sets ROBUSTNESS.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("ROBUSTNESS") == "" {
		t.Skip("takes minutes: make robustness")
	}
}

// run runs a scenario, appends the result to the file that ROBUSTNESS_RESULTS names, and fails if a promise is
// broken.
func run(t *testing.T, s *robustness.Scenario) {
	t.Helper()
	res := s.Do(t)
	t.Log(res)
	if path := os.Getenv("ROBUSTNESS_RESULTS"); path != "" {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		require.NoError(t, err)
		defer f.Close()
		require.NoError(t, json.NewEncoder(f).Encode(res))
	}
	require.Empty(t, res.Faults)
}

// One short run, so that make test knows that the harness works.
func TestScenario_MutexUnderEveryFault(t *testing.T) {
	redistest.SkipIfShort(t)
	s := robustness.Fixed(1500 * time.Millisecond)[0]
	s.Each = false // takes longer
	run(t, s)
}

func TestFixed(t *testing.T) {
	long(t)
	for _, s := range robustness.Fixed(10 * time.Second) {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel() // most of a run waits for faults to end
			run(t, s)
		})
	}
}

// TestRandom runs the scenario of SEED, or those of random seeds for DURATION.
func TestRandom(t *testing.T) {
	long(t)
	const length = 30 * time.Second
	if text := os.Getenv("SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		run(t, robustness.Random(seed, length))
		return
	}
	lasts, err := time.ParseDuration(cmp.Or(os.Getenv("DURATION"), "1s"))
	require.NoError(t, err)
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		seed := uint64(time.Now().UnixNano() % 1_000_000)
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { run(t, robustness.Random(seed, length)) })
	}
}

func TestFixed_CoversEveryFaultAndKind(t *testing.T) {
	t.Parallel()
	faults, kinds, topologies := make(map[string]bool), make(map[string]bool), make(map[robustness.Topology]bool)
	for _, s := range robustness.Fixed(time.Second) {
		kinds[s.Kind], topologies[s.Topology] = true, true
		for _, f := range s.Faults {
			faults[f.Name] = true
		}
	}
	for _, f := range robustness.Faults {
		require.True(t, faults[f.Name] || f.Clock && !redistest.HasClocks(), f.Name)
	}
	for _, k := range robustness.Kinds {
		require.True(t, kinds[k.Name], k.Name)
	}
	require.Len(t, topologies, 4)
}
