//go:build unix

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/benchmarks/figures"
)

// fleetResults are results of two sizes of fleets. The larger one has no waits.
const fleetResults = `pkg: fleets
BenchmarkSections/work=mutex/hold=2ms/processes=1/impl=cogwheel-2 1 2.001 calls/op 100 server-us/op 400 ops/s 1 p50-wait-ms 2 p99-wait-ms 3 max-wait-ms 1 fairness
BenchmarkSections/work=mutex/hold=2ms/processes=64/impl=cogwheel-2 1 3 calls/op 200 server-us/op 300 ops/s
BenchmarkSections/work=mutex/hold=2ms/processes=64/impl=before 1 65.2 calls/op 1000 server-us/op 200 ops/s 4 p50-section-ms 1234 p99-section-ms 5678 max-section-ms
BenchmarkSections/work=mutex/hold=2ms/processes=1/impl=bsm-2 1 2 calls/op 80 server-us/op 410 ops/s 1 p50-wait-ms 2 p99-wait-ms 3 max-wait-ms 0.25 fairness
`

func mutexLine(impl string, processes int) fleetLine {
	return fleetLine{impl, sectionsBench("mutex", fleetHolds[0]), impl, processes}
}

func TestFleetTable(t *testing.T) {
	t.Parallel()
	p := read(t, fleetResults)
	got, err := p.fleetTable([]fleetLine{mutexLine("cogwheel", 1), mutexLine("cogwheel", 64), mutexLine("bsm", 1)}, "wait", "waits", true)
	require.NoError(t, err)
	require.Equal(t, `|  | processes | calls per operation | before | µs of the server per operation | before | operations per second | before | waits | before | fairness |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| cogwheel | 1 | **2** |  | **100** |  | **400** |  | 1; 2; 3 |  | 1 |
|  | 64 | **3** | 65.2 | **200** | 1000 | **300** | 200 |  | 4; 1234; 5678 |  |
| bsm | 1 | 2 |  | 80 |  | 410 |  | 1; 2; 3 |  | 0.25 |
`, got)
}

func TestFleetTable_WithoutEarlierFigures(t *testing.T) {
	t.Parallel()
	got, err := read(t, fleetResults).fleetTable([]fleetLine{mutexLine("cogwheel", 1)}, "wait", "waits", false)
	require.NoError(t, err)
	require.NotContains(t, got, "before")
	require.Equal(t, "| cogwheel | 1 | **2** | **100** | **400** | 1; 2; 3 |", strings.Split(got, "\n")[2])
}

func TestFleetTable_PrefersEarlierWaitsToSections(t *testing.T) {
	t.Parallel()
	p := read(t, fleetResults+"BenchmarkSections/work=mutex/hold=2ms/processes=64/impl=before 1 7 p50-wait-ms 8 p99-wait-ms 9 max-wait-ms\n")
	got, err := p.fleetTable([]fleetLine{mutexLine("cogwheel", 64)}, "wait", "waits", false)
	require.NoError(t, err)
	require.Equal(t, "| cogwheel | 64 | **3** | 65.2 | **200** | 1000 | **300** | 200 |  | 7; 8; 9 |", strings.Split(got, "\n")[2])
}

func TestFleetTable_FailsWithoutFigures(t *testing.T) {
	t.Parallel()
	_, err := read(t, fleetResults).fleetTable([]fleetLine{mutexLine("bsm", 64)}, "wait", "waits", true)
	require.ErrorContains(t, err, "no figures")
}

// Figures of before.txt whose names no table has would not be shown.
func TestBefore_IsInTheTables(t *testing.T) {
	t.Parallel()
	set, err := figures.Read(strings.NewReader(before), "before.txt")
	require.NoError(t, err)
	require.NotEmpty(t, set.Keys)
	var shown []string
	for _, n := range fleetSizes(true) {
		for _, w := range fleetWorks {
			for _, hold := range fleetHolds {
				shown = append(shown, fleetKey(sectionsBench(w.name, hold), n, "").Bench)
			}
		}
		for _, rate := range fleetRates {
			shown = append(shown, fleetKey(tasksBench(rate), n, "").Bench)
		}
	}
	for _, k := range set.Keys {
		require.Contains(t, shown, k.Bench)
		require.Len(t, set.Of(k, "before"), 1, "%v", k)
	}
}

// The list of comparisons in which cogwheel is worse has those of fleets.
func TestNotFaster_OfFleets(t *testing.T) {
	t.Parallel()
	p := read(t, fleetResults)
	p.tables = []table{fleetSections(true)}
	var found []string
	for _, c := range p.NotFaster(true) {
		found = append(found, c.What+", "+c.Peer)
	}
	require.Equal(t, []string{
		"`Mutex` held for 2 ms, 1 process: µs of the server, bsm/redislock",
		"`Mutex` held for 2 ms, 1 process: operations per second, bsm/redislock",
	}, found)
}

const severalPackages = `size: full
date: 2020-01-01
goos: linux
goarch: amd64
pkg: example.com/benchmarks/locks
BenchmarkA/impl=cogwheel 1 1 pairs/s
PASS
pkg: wheel
BenchmarkB/impl=Netty 1 2 ns/call
goos: linux
goarch: amd64
pkg: example.com/benchmarks/fleets
BenchmarkC/impl=cogwheel 1 3 calls/op
PASS
goos: linux
goarch: amd64
pkg: example.com/benchmarks/locks
BenchmarkA/impl=cogwheel 1 4 pairs/s
PASS
`

func TestReplaceResults(t *testing.T) {
	t.Parallel()
	const raw = "fleets-window: 1s\ngoos: linux\ngoarch: amd64\npkg: example.com/benchmarks/fleets\nBenchmarkC/impl=cogwheel 1 5 calls/op\nPASS\n"
	once := replaceResults(severalPackages, "fleets", "size: full\ndate: 2021-01-01\ncommit: abc\ncores: 2\n", raw)
	set, err := figures.Read(strings.NewReader(once), "test")
	require.NoError(t, err)
	require.Equal(t, []float64{5}, set.Of(figures.Key{Package: "fleets", Bench: "C", Unit: "calls/op"}, "cogwheel"))
	require.Equal(t, []float64{1, 4}, set.Of(figures.Key{Package: "locks", Bench: "A", Unit: "pairs/s"}, "cogwheel"))
	require.Equal(t, []float64{2}, set.Of(figures.Key{Package: "wheel", Bench: "B", Unit: "ns/call"}, "Netty"))
	require.Equal(t, "2020-01-01", set.Config["date"])
	require.Equal(t, "2021-01-01", set.Config["fleets-date"])
	require.Equal(t, "abc", set.Config["fleets-commit"])
	require.Equal(t, "1s", set.Config["fleets-window"])

	again := replaceResults(once, "fleets", "date: 2022-01-01\n", strings.TrimPrefix(raw, "fleets-window: 1s\n"))
	require.Equal(t, 1, strings.Count(again, "BenchmarkC"))
	require.Equal(t, 3, strings.Count(again, "goos: "))
	require.Contains(t, again, "fleets-date: 2022-01-01\n")
	for _, old := range []string{"2021", "fleets-commit", "fleets-window"} {
		require.NotContains(t, again, old)
	}
}

func TestSteps_OfOnePackage(t *testing.T) {
	t.Parallel()
	steps := (&measurement{only: "fleets", netty: "a.jar"}).steps()
	require.Len(t, steps, 2)
	for _, s := range steps {
		require.Equal(t, "fleets", s.pkg)
	}
	require.True(t, slices.ContainsFunc((&measurement{only: "wheel", netty: "a.jar"}).steps(), func(s step) bool {
		return s.pkg == nettyFolder
	}), "results of Netty are in the package of the wheel")
}

// A measurement of one package needs the results of the others, and says so before it measures.
func TestRun_OfOnePackageNeedsResults(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "report.txt")
	for only, want := range map[string]string{"fleets": "no such file", "fleet": `no step measures package "fleet"`} {
		m := &measurement{only: only, rounds: 1, log: &bytes.Buffer{}}
		require.ErrorContains(t, m.run(t.Context(), file), want)
		_, err := os.Stat(file + ".partial")
		require.ErrorIs(t, err, os.ErrNotExist)
	}
	require.NoError(t, os.WriteFile(file, []byte("size: full\n"), 0o644))
	m := &measurement{only: "fleets", rounds: 1, log: &bytes.Buffer{}}
	require.ErrorContains(t, m.run(t.Context(), file), "do not fit")
}

func TestFleetWarning(t *testing.T) {
	t.Parallel()
	for head, want := range map[string]string{
		"size: full\n":                        "",
		"size: full\nfleets-load: 0.50\n":     "",
		"size: full\nfleets-load: 3.10\n":     "busy",
		"size: full\nfleets-window: 1s\n":     "preliminary: each was measured for 1s",
		"fleets-load: 2\nfleets-window: 2s\n": "preliminary",
	} {
		got := read(t, head+fleetResults).FleetWarning()
		require.Equal(t, want == "", got == "", head)
		require.Contains(t, got, want)
	}
}

func TestLater(t *testing.T) {
	t.Parallel()
	require.Empty(t, read(t, fleetResults).Later("fleets"))
	require.Empty(t, read(t, fleetResults).LaterPackages())
	require.Equal(t, []string{"semaphores", "fleets"},
		read(t, "fleets-date: 2021-01-02\nsemaphores-date: 2021-01-03\n"+fleetResults).LaterPackages())
	p := read(t, "fleets-date: 2021-01-02\nfleets-commit: abc\nfleets-changed: yes\nfleets-load: 0.10\n"+fleetResults)
	require.Equal(t, "2021-01-02, commit `abc` with changes, load average 0.10 at the beginning", p.Later("fleets"))
	p = read(t, "cores: 2\nredis: 7.0.15\nprocessor: A\nfleets-date: 2021-01-02\nfleets-commit: abc\nfleets-cores: 4\nfleets-redis: 7.0.15\n"+
		"fleets-processor: B\n"+fleetResults)
	require.Equal(t, "2021-01-02, commit `abc`, B, 4 cores", p.Later("fleets"), "what does not differ is left out")
}
