package wheel_test

import (
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/testsize"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the second one empties the pools
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Guarantees: W16.
func TestWheel_MillionsOfTimersGiveTheirMemoryBack(t *testing.T) {
	// Not parallel: it measures the heap of the process.
	n := testsize.Of(300_000, 1_000_000)
	c := &steppedClock{wait: make(chan time.Time)}
	var fired atomic.Int64
	done := make(chan struct{})
	w, err := wheel.NewTyped(func(uint32) {
		if fired.Add(1) == int64(n-n/2) {
			close(done)
		}
	}, wheel.WithClock(c), wheel.WithExecutor(wheel.Inline())) // an ended goroutine leaves memory behind
	require.NoError(t, err)
	timers := make([]wheel.Timer, n)
	before := heap()
	for k := range timers {
		timers[k], err = w.Add(uint32(k), time.Second+time.Duration(rand.Int64N(int64(time.Hour))))
		require.NoError(t, err)
	}
	peak := heap()
	require.Less(t, (peak-before)/int64(n), int64(40), "bytes a pending timer")
	rand.Shuffle(n, func(i, j int) { timers[i], timers[j] = timers[j], timers[i] })
	for _, timer := range timers[:n/2] {
		require.True(t, timer.Stop())
	}
	require.Equal(t, n-n/2, w.Len())
	c.now.Add(int64(2 * time.Hour))
	c.wait <- time.Time{}
	<-done
	after := heap()
	t.Logf("%d timers: %.1f bytes each while pending; heap %d before, %d at the peak, %d after", n,
		float64(peak-before)/float64(n), before, peak, after)
	require.Zero(t, w.Len())
	require.LessOrEqual(t, after, before+(peak-before)/20, "memory stays behind")
	for _, timer := range timers {
		require.False(t, timer.Pending())
	}
	rest, err := w.Stop(t.Context())
	require.NoError(t, err)
	require.Empty(t, rest)
}
