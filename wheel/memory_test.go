package wheel_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/testsize"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// bytesEach returns what a pending timer takes while n of them pend, spread evenly from soonest on.
func bytesEach(t *testing.T, n int, soonest, spread time.Duration, opts ...wheel.Option) int64 {
	t.Helper()
	w := newWheel(t, append(opts, wheel.WithClock(&steppedClock{wait: make(chan time.Time)}))...)
	before := heap()
	for k := range n {
		after(t, w, soonest+spread*time.Duration(k)/time.Duration(n), func() {})
	}
	each := (heap() - before) / int64(n)
	require.Equal(t, n, w.Len())
	runtime.KeepAlive(w)
	return each
}

// Guarantees: W16.
func TestWheel_MemoryFollowsWhatIsPending(t *testing.T) {
	// Not parallel: it measures the heap of the process.
	cases := []struct {
		n               int
		soonest, spread time.Duration
		atMost          int64
	}{
		{1000, time.Hour, time.Hour, 80}, // 52 if one shard has them all, as is usual
		{1000, time.Second, 30 * time.Second, 80},
		{3000, time.Hour, time.Hour, 70},
		{10_000, time.Hour, 24 * time.Hour, 60},
		{30_000, time.Second, 30 * time.Second, 60},
		{100_000, time.Hour, time.Hour, 50},
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%d from %v on", c.n, c.soonest), func(t *testing.T) {
			each := bytesEach(t, c.n, c.soonest, c.spread)
			t.Logf("%d bytes a timer", each)
			require.GreaterOrEqual(t, each, int64(28), "a node and a func take as much: the measurement is wrong")
			require.LessOrEqual(t, each, c.atMost)
		})
	}
}

func TestWheel_MemoryOfAWheelWithManyBuckets(t *testing.T) {
	// Not parallel: it measures the heap of the process.
	for _, spread := range []time.Duration{time.Minute, 10 * time.Minute, time.Hour} {
		each := bytesEach(t, 20_000, time.Hour, spread, wheel.WithTicksPerWheel(65536))
		t.Logf("%d bytes a timer over %v", each, spread)
		require.GreaterOrEqual(t, each, int64(28), "a node and a func take as much: the measurement is wrong")
		require.LessOrEqual(t, each, int64(120))
	}
}

// What a burst of timers took is given back when they are stopped, in whatever order.
func TestWheel_MemoryOfABurstIsGivenBack(t *testing.T) {
	// Not parallel: it measures the heap of the process.
	n := testsize.WhenAlone(100_000, 5_000_000)
	forward := func(k int) int { return k }
	for _, c := range []struct {
		name   string
		order  func(k int) int
		keep   int // one of so many lasts
		atMost int // bytes for each timer of the burst, besides 100 KB
	}{
		{"stopped in the order in which they were made", forward, 0, 0},
		{"stopped in the opposite order", func(k int) int { return n - 1 - k }, 0, 0},
		{"stopped in no order", func(k int) int { return int(int64(k) * 7919 % int64(n)) }, 0, 0},
		{"one of 600 lasts", forward, 600, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWheel(t, wheel.WithClock(&steppedClock{wait: make(chan time.Time)}))
			timers := make([]wheel.Timer, n)
			before, lasts := heap(), 0
			for k := range timers {
				timers[k] = after(t, w, time.Hour+time.Duration(k)*time.Microsecond, func() {})
			}
			full := heap() - before
			for k := range timers {
				if i := c.order(k); c.keep > 0 && i%c.keep == 0 {
					lasts++
				} else {
					require.True(t, timers[i].Stop())
				}
			}
			left := heap() - before
			t.Logf("%d bytes for %d timers, %d for %d", full, n, left, lasts)
			require.Equal(t, lasts, w.Len())
			require.Greater(t, full, int64(28*n), "the measurement is wrong")
			require.Less(t, left, int64(c.atMost*n+100_000))
			runtime.KeepAlive(timers)
		})
	}
}
