//go:build unix

package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/benchmarks/figures"
)

const (
	published = "../../results/report.txt"
	root      = "../../.."
)

// The page, its plots and the figures of README.md are what `make bench-page` makes of the published results.
func TestDocuments_AreThoseOfThePublishedResults(t *testing.T) {
	t.Parallel()
	files, err := documents(published, root)
	require.NoError(t, err)
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, name))
		require.NoError(t, err)
		require.True(t, bytes.Equal(got, want), "%s is not what `make bench-page` writes", name)
	}
	plots, err := filepath.Glob(filepath.Join(root, "docs/plots/*"))
	require.NoError(t, err)
	for _, plot := range plots {
		require.Contains(t, files, "docs/plots/"+filepath.Base(plot), "nothing draws it")
	}
}

// What was measured decides what the documents say: each of them differs for other results.
func TestDocuments_DifferForOtherResults(t *testing.T) {
	t.Parallel()
	files, err := documents(published, root)
	require.NoError(t, err)
	text, err := os.ReadFile(published)
	require.NoError(t, err)
	doubled := regexp.MustCompile(`(\t\s*)([1-9]\d*)`).ReplaceAll(text, []byte("${1}9$2"))
	other := filepath.Join(t.TempDir(), "report.txt")
	require.NoError(t, os.WriteFile(other, doubled, 0o644))
	changed, err := documents(other, root)
	require.NoError(t, err)
	require.Len(t, changed, len(files))
	for name, before := range files {
		require.False(t, bytes.Equal(before, changed[name]), name)
	}
}

func TestDocuments_FailWithoutFigures(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(published)
	require.NoError(t, err)
	for name, part := range map[string]string{"nothing": "size: full\n", "a benchmark is missing": withoutLines(string(text), "BenchmarkTakeover")} {
		file := filepath.Join(t.TempDir(), "report.txt")
		require.NoError(t, os.WriteFile(file, []byte(part), 0o644))
		_, err = documents(file, root)
		require.Error(t, err, name)
	}
}

func withoutLines(text, prefix string) string {
	return regexp.MustCompile(`(?m)^`+prefix+`.*\n`).ReplaceAllString(text, "")
}

// The text around the tables states no time, rate or ratio, and README.md none outside of the part that is written.
func TestDocuments_FiguresAreNotTyped(t *testing.T) {
	t.Parallel()
	figure := regexp.MustCompile(`\d\s*(ns|µs|x|%|times)(\W|$)`)
	text := regexp.MustCompile(`(?s)\{\{.*?\}\}`).ReplaceAllString(pageTemplate, "")
	require.Empty(t, figure.FindAllString(text, -1))
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	readme = regexp.MustCompile(`(?s)<!-- figures.*<!-- end`).ReplaceAll(readme, nil)
	require.Empty(t, figure.FindAllString(string(readme), -1))
	require.NotEmpty(t, figure.FindAllString("it takes 12 ns, which is 3x better", -1))
}

// read returns a page of these results, with one table.
func read(t *testing.T, text string, rows ...row) *page {
	t.Helper()
	set, err := figures.Read(strings.NewReader(text), "test")
	require.NoError(t, err)
	return &page{set: set, tables: []table{{"timers", "wheel", []string{"Netty", "floor"}, rows}}}
}

const twoRounds = `size: full
pkg: example.com/wheel
BenchmarkCost/impl=wheel-2 1 10 ns/call
BenchmarkCost/impl=Netty 1 20 ns/call
BenchmarkCost/impl=floor-2 1 1 ns/call
BenchmarkRate/impl=wheel-2 1 10 pairs/s
BenchmarkRate/impl=Netty 1 20 pairs/s
BenchmarkMixed/impl=wheel-2 1 10 ns/call
BenchmarkMixed/impl=Netty 1 8 ns/call
BenchmarkNothing/impl=wheel-2 1 0 ns/call
BenchmarkNothing/impl=Netty 1 5 ns/call
BenchmarkCost/impl=wheel-2 1 10 ns/call
BenchmarkCost/impl=Netty 1 40 ns/call
BenchmarkRate/impl=wheel-2 1 10 pairs/s
BenchmarkRate/impl=Netty 1 50 pairs/s
BenchmarkMixed/impl=wheel-2 1 10 ns/call
BenchmarkMixed/impl=Netty 1 12 ns/call
BenchmarkEarly/impl=wheel-2 1 1 p10-late-ms
BenchmarkEarly/impl=Netty 1 -1 p10-late-ms
BenchmarkVersus 1 2.5 wheel:x 100 wheel:/s 40 Netty:/s
`

func wheelKey(bench, unit string) figures.Key {
	return figures.Key{Package: "wheel", Bench: bench, Unit: unit}
}

func TestAdvantage(t *testing.T) {
	t.Parallel()
	p := read(t, twoRounds)
	for name, x := range map[string]struct {
		row  row
		want spread
	}{
		"a cost: the peer's by ours":             {row{key: wheelKey("Cost", "ns/call")}, spread{3, 2, 4}},
		"a rate: ours by the peer's":             {row{key: wheelKey("Rate", "pairs/s"), more: true}, spread{0.35, 0.2, 0.5}},
		"rounds that do not agree":               {row{key: wheelKey("Mixed", "ns/call")}, spread{1, 0.8, 1.2}},
		"no cost at all":                         {row{key: wheelKey("Nothing", "ns/call")}, spread{math.Inf(1), math.Inf(1), math.Inf(1)}},
		"a ratio that the benchmark has made up": {row{key: wheelKey("Versus", "/s"), more: true, ratio: "x"}, spread{2.5, 2.5, 2.5}},
	} {
		got, ok := x.row.advantage(p.set, "wheel", "Netty")
		require.True(t, ok, name)
		require.InDelta(t, x.want.median, got.median, 1e-9, name)
		require.InDelta(t, x.want.least, got.least, 1e-9, name)
		require.InDelta(t, x.want.most, got.most, 1e-9, name)
	}
	for _, nothing := range []figures.Key{wheelKey("Absent", "ns/call"), wheelKey("Early", "p10-late-ms")} {
		_, ok := row{key: nothing}.advantage(p.set, "wheel", "Netty")
		require.False(t, ok, "%v", nothing)
	}
}

func TestNotFaster(t *testing.T) {
	t.Parallel()
	p := read(t, twoRounds,
		row{load: "cost", what: "ns", key: wheelKey("Cost", "ns/call")}, // better than Netty; the floor is no peer
		row{load: "rate", what: "per second", key: wheelKey("Rate", "pairs/s"), more: true},
		row{load: "mixed", what: "ns", key: wheelKey("Mixed", "ns/call")},
		row{load: "nothing", what: "ns", key: wheelKey("Nothing", "ns/call")})
	clearly, perhaps := p.NotFaster(true), p.NotFaster(false)
	require.Len(t, clearly, 1)
	require.Equal(t, "rate: per second", clearly[0].What)
	require.Len(t, perhaps, 1)
	require.Equal(t, "mixed: ns", perhaps[0].What)
}

// The short page leaves out floors and rows that are not marked, and says where the rounds do not agree.
func TestShort(t *testing.T) {
	t.Parallel()
	p := read(t, twoRounds,
		row{load: "cost", what: "ns", key: wheelKey("Cost", "ns/call"), short: true},
		row{what: "left out", key: wheelKey("Nothing", "ns/call")},
		row{what: "mixed", key: wheelKey("Mixed", "ns/call"), short: true})
	got, err := p.Short("timers")
	require.NoError(t, err)
	require.Equal(t, []string{"| cost | ns | **10** | 30 (3.00x) |", "|  | mixed | **10** | 10 (≈ 1.00x) |"},
		strings.Split(strings.TrimSpace(got), "\n")[2:])
	_, err = p.Short("absent")
	require.Error(t, err)
}

func TestSlower(t *testing.T) {
	t.Parallel()
	p := read(t, "netty: 4.1\n"+twoRounds, row{load: "rate", what: "per second", key: wheelKey("Rate", "pairs/s"), more: true})
	require.Equal(t, "| timers | rate | per second: Netty 4.1 0.35x |\n", p.Slower())

	p = read(t, fleetResults)
	p.tables = []table{fleetSections(true)}
	require.Equal(t, "| fleets | `Mutex` | bsm/redislock 0.80–0.98x |\n", p.Slower())
}

func TestGoals(t *testing.T) {
	t.Parallel()
	cost := row{load: "cost", what: "ns", key: wheelKey("Cost", "ns/call")}
	cost.goals = []goal{{"Netty", 3, "because"}, {"Netty", 3.1, "because"}, {"", 10, "because"}, {"", 9, "because"}, {"absent", 1, ""}}
	p := read(t, twoRounds, cost)
	var verdicts, reasons []string
	for _, g := range p.Goals() {
		verdicts, reasons = append(verdicts, g.Verdict), append(reasons, g.Why)
	}
	require.Equal(t, []string{"met", "missed", "met", "missed"}, verdicts)
	require.Equal(t, []string{"", "because", "", "because"}, reasons)
	require.Equal(t, 2, p.Count("missed"))
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{
		0: "0", 0.0001: "0", 0.0012: "0.0012", 1.234: "1.23", 99.94: "99.9", 123.4: "123", 9999: "9999", 12_345: "12 345", 10_000_000: "10 000 000",
	} {
		require.Equal(t, want, number(v))
	}
	require.Equal(t, "1.50x", spread{1.5, 1.5, 1.5}.String())
	require.Equal(t, "12.3x (1.00–1234)", spread{12.3, 1, 1234}.String())
}

func TestTakesPart(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 5; n++ {
		var with []int
		for round := 1; round <= 5; round++ {
			if takesPart(n, round, 5) {
				with = append(with, round)
			}
		}
		require.Len(t, with, n)
		require.True(t, takesPart(n, 1, 1), "everything is measured in a single round")
	}
}

func TestSteps_NettyOnlyIfItIsThere(t *testing.T) {
	t.Parallel()
	netty := func(s step) bool { return s.pkg == nettyFolder }
	require.True(t, slices.ContainsFunc((&measurement{netty: "a.jar"}).steps(), netty))
	require.False(t, slices.ContainsFunc((&measurement{}).steps(), netty))
}

func TestWarning(t *testing.T) {
	t.Parallel()
	for head, want := range map[string]string{
		"size: full\nrounds: 5\nload: 0.10\n":  "",
		"size: full\nrounds: 5\nload: 1.70\n":  "busy",
		"size: full\nrounds: 2\nload: 0.10\n":  "preliminary",
		"size: smoke\nrounds: 5\nload: 0.10\n": "mean nothing",
	} {
		set, err := figures.Read(strings.NewReader(head+"BenchmarkCost/impl=wheel 1 10 ns/call\n"), "test")
		require.NoError(t, err)
		got := (&page{set: set}).Warning()
		require.Equal(t, want == "", got == "", head)
		require.Contains(t, got, want)
	}
}
