package figures_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/benchmarks/figures"
)

func TestRead(t *testing.T) {
	t.Parallel()
	set, err := figures.Read(strings.NewReader(`date: 2020-01-02
pkg: example.com/benchmarks/locks
BenchmarkA/x=1/impl=cogwheel-2 1 12 ns/op 3 pairs/s
BenchmarkA/x=1/impl=cogwheel-window 1 4 pairs/s
BenchmarkA/x=1/impl=cogwheel-2 1 5 pairs/s
pkg: example.com/benchmarks/limits
date: 2021-01-02
BenchmarkB-2 1 7 redis_rate:server-us 250 ns/denial
`), "test")
	require.NoError(t, err)
	a := figures.Key{Package: "locks", Bench: "A/x=1", Unit: "pairs/s"}
	require.Equal(t, []float64{3, 5}, set.Of(a, "cogwheel"), "in the order of the file, without GOMAXPROCS")
	require.Equal(t, []float64{4}, set.Of(a, "cogwheel-window"))
	require.Equal(t, []float64{7}, set.Of(figures.Key{Package: "limits", Bench: "B", Unit: "server-us"}, "redis_rate"))
	require.Equal(t, []float64{250}, set.Of(figures.Key{Package: "limits", Bench: "B", Unit: "ns/denial"}, ""))
	require.Len(t, set.Keys, 3, "ns/op is no figure")
	require.Equal(t, "2020-01-02", set.Config["date"], "the first of each key")
}

func TestSet_Add(t *testing.T) {
	t.Parallel()
	read := func(text string) *figures.Set {
		set, err := figures.Read(strings.NewReader(text), "test")
		require.NoError(t, err)
		return set
	}
	set := read("date: 2020-01-02\npkg: locks\nBenchmarkA/impl=cogwheel 1 3 pairs/s\n")
	set.Add(read("date: 2021-01-02\npkg: locks\nBenchmarkA/impl=cogwheel 1 4 pairs/s\nBenchmarkA/impl=before 1 5 pairs/s 6 calls/op\n"))
	pairs := figures.Key{Package: "locks", Bench: "A", Unit: "pairs/s"}
	require.Equal(t, []float64{3, 4}, set.Of(pairs, "cogwheel"))
	require.Equal(t, []float64{5}, set.Of(pairs, "before"))
	require.Len(t, set.Keys, 2)
	require.Equal(t, "2020-01-02", set.Config["date"])
}

func TestMedian(t *testing.T) {
	t.Parallel()
	for want, of := range map[float64][]float64{2: {3, 1, 2}, 2.5: {4, 1, 2, 3}, 7: {7}} {
		got, ok := figures.Median(of)
		require.True(t, ok)
		require.InDelta(t, want, got, 0)
	}
	_, ok := figures.Median(nil)
	require.False(t, ok)
}
