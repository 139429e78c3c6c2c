package wheel_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestHistogram_IsReadByValue(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		require.Zero(t, w.Stats().Lateness.Quantile(0.99), "nothing was counted")
		for range 100 {
			after(t, w, time.Second, func() {})
		}
		pass(time.Second + time.Millisecond)
		st := w.Stats()
		require.EqualValues(t, 100, w.Stats().Lateness.Count())
		require.LessOrEqual(t, w.Stats().Lateness.Sum(), 100*time.Millisecond)
		require.LessOrEqual(t, w.Stats().Lateness.Quantile(0.99), 1024*time.Microsecond)
		after(t, w, time.Second, func() {})
		pass(2 * time.Second)
		require.EqualValues(t, 100, st.Lateness.Count(), "a snapshot does not change")
		require.EqualValues(t, 101, w.Stats().Lateness.Count())
	})
}

func TestHistogram_BucketsAreCumulativeWithInclusiveBounds(t *testing.T) {
	t.Parallel()
	const us = time.Microsecond
	h := wheel.HistogramOf(-time.Hour, 0, 1, us, us+1, 2*us, 2*us+1, 3*us, 4*us, 5*us, time.Hour, 1000*time.Hour)
	want := map[time.Duration]uint64{us: 4, 2 * us: 6, 4 * us: 9, 8 * us: 10, 1 << 31 * us: 10, 1 << 32 * us: 11, 1 << 38 * us: 11}
	var bounds []time.Duration
	last := uint64(0)
	for upper, count := range h.Buckets() {
		bounds = append(bounds, upper)
		require.GreaterOrEqual(t, count, last)
		last = count
		if n, ok := want[upper]; ok {
			require.Equal(t, n, count, "up to %v", upper)
		}
	}
	require.True(t, slices.IsSorted(bounds))
	require.Len(t, bounds, 39)
	require.Equal(t, 1<<38*us, bounds[38])
	require.EqualValues(t, 12, h.Count(), "with the one beyond the last bound")
	require.Equal(t, 1001*time.Hour+18*us+3, h.Sum(), "a duration below zero counts as zero")
	for upper := range h.Buckets() {
		if upper == 8*us {
			break // a caller may stop early
		}
	}
}

func TestHistogram_QuantilesAreBoundsLessThanTwiceTooHigh(t *testing.T) {
	t.Parallel()
	ds := make([]time.Duration, 10_001)
	for k := range ds {
		ds[k] = time.Duration(rand.Int64N(int64(time.Hour)) >> rand.IntN(40))
	}
	h := wheel.HistogramOf(ds...)
	slices.Sort(ds)
	for _, q := range []float64{0, 0.001, 0.25, 0.5, 0.99, 0.9999, 1} {
		exact := ds[max(0, int(math.Ceil(q*float64(len(ds))))-1)]
		require.GreaterOrEqual(t, h.Quantile(q), exact, q)
		require.Less(t, h.Quantile(q), max(2*exact, 2*time.Microsecond), q)
	}
	require.Equal(t, h.Quantile(0), h.Quantile(-1))
	require.Equal(t, h.Quantile(1), h.Quantile(2))
	require.Equal(t, 4*time.Microsecond, wheel.HistogramOf(time.Microsecond, 3*time.Microsecond).Quantile(0.51))
	require.Equal(t, time.Microsecond, wheel.HistogramOf(time.Microsecond, 3*time.Microsecond).Quantile(0.5))
	require.Equal(t, time.Duration(math.MaxInt64), wheel.HistogramOf(1000*time.Hour).Quantile(0.5))
	require.Zero(t, wheel.Histogram{}.Quantile(0.5))
}

func TestHistogram_TheSumStaysAtItsGreatestValue(t *testing.T) {
	t.Parallel()
	h := wheel.HistogramOf(math.MaxInt64, math.MaxInt64)
	require.Equal(t, time.Duration(math.MaxInt64), h.Sum())
	h = wheel.Merged(h, wheel.HistogramOf(time.Second))
	require.Equal(t, time.Duration(math.MaxInt64), h.Sum())
	require.EqualValues(t, 3, h.Count())
}
