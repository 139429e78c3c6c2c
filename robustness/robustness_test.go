package robustness_test

import (
	"cmp"
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/robustness"
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

// scenario is what can be run.
type scenario interface {
	Do(t *testing.T) *robustness.Result
}

// run runs a scenario, records the result, and fails if a promise is broken.
func run(t *testing.T, s scenario) {
	t.Helper()
	res := s.Do(t)
	t.Log(res)
	record(t, res)
	require.Empty(t, res.Faults)
}

// record appends a result to the file that ROBUSTNESS_RESULTS names.
func record(t *testing.T, result any) {
	t.Helper()
	path := os.Getenv("ROBUSTNESS_RESULTS")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	require.NoError(t, err)
	require.NoError(t, json.NewEncoder(f).Encode(result))
	require.NoError(t, f.Close())
}

// One short run, so that make test knows that the harness works.
func TestScenario_MutexUnderEveryFault(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	s := robustness.Fixed(1500 * time.Millisecond)[0]
	s.Each = false // takes longer
	run(t, s)
}

func TestTimers_OfAProcessThatIsStoppedAndStarved(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	run(t, robustness.FixedTimers(50_000, 2*time.Second))
}

func TestFixed(t *testing.T) {
	long(t)
	for _, s := range robustness.Fixed(10 * time.Second) {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel() // most of a run waits for faults to end
			run(t, s)
		})
	}
	timers := robustness.FixedTimers(1_000_000, 20*time.Second)
	t.Run(timers.Name, func(t *testing.T) { run(t, timers) })
}

// TestRandom runs random scenarios: that of SEED, or those of SEED and the numbers after it for DURATION. Without
// SEED the first one is random. It is printed, so that any scenario of a long run can be repeated by its own seed.
// KIND skips the scenarios of other kinds.
func TestRandom(t *testing.T) {
	long(t)
	const length = 30 * time.Second
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("SEED"), strconv.FormatInt(time.Now().UnixNano()%1e9, 10)), 10, 64)
	require.NoError(t, err)
	lasts, err := time.ParseDuration(cmp.Or(os.Getenv("DURATION"), "1s"))
	require.NoError(t, err)
	t.Logf("first seed %d, for %v", seed, lasts)
	for end := time.Now().Add(lasts); time.Now().Before(end); seed++ {
		s := robustness.Random(seed, length)
		if kind := os.Getenv("KIND"); kind != "" && kind != s.Kind {
			continue
		}
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { run(t, s) })
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
	for _, k := range slices.Concat(robustness.Kinds, robustness.TaskKinds) {
		require.True(t, kinds[k.Name], k.Name)
	}
	require.Len(t, topologies, 4)
}
