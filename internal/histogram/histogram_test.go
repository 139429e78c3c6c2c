package histogram_test

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/histogram"
)

func TestValues_SumGoesOnBeyondTheGreatestDuration(t *testing.T) {
	t.Parallel()
	var v, twice histogram.Values
	for n := range 5 {
		v.Add(math.MaxInt64)
		require.Equal(t, time.Duration(math.MaxInt64), v.Sum())
		require.InEpsilon(t, float64(n+1)*math.MaxInt64/1e9, v.Seconds(), 1e-12)
	}
	v.Add(-time.Second)
	require.EqualValues(t, 6, v.Count())
	twice.Merge(&v)
	twice.Merge(&v)
	require.InEpsilon(t, 10*float64(math.MaxInt64)/1e9, twice.Seconds(), 1e-12)
	require.EqualValues(t, 12, twice.Count())

	var small histogram.Values
	small.Add(1 << 62)
	small.Add(1<<62 - 1)
	require.Equal(t, time.Duration(math.MaxInt64), small.Sum(), "exactly")
	require.Zero(t, new(histogram.Values).Seconds())
}

func TestRecorder_CountsWhatIsAddedConcurrently(t *testing.T) {
	t.Parallel()
	var r histogram.Recorder
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 1000 {
				r.Add(time.Duration(i) * time.Microsecond)
			}
		})
	}
	all.Wait()
	v := r.Values()
	require.EqualValues(t, 8000, v.Count())
	require.Equal(t, 8*999*1000/2*time.Microsecond, v.Sum())
	require.InDelta(t, v.Sum().Seconds(), v.Seconds(), 1e-9)
}
