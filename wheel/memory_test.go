package wheel_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// bytesEach returns what a pending timer takes while n of them pend, spread evenly from soonest on.
func bytesEach(t *testing.T, n int, soonest, spread time.Duration) int64 {
	w := newWheel(t, wheel.WithClock(&steppedClock{wait: make(chan time.Time)}))
	before := heap()
	for k := range n {
		after(t, w, soonest+spread*time.Duration(k)/time.Duration(n), func() {})
	}
	each := (heap() - before) / int64(n)
	require.Equal(t, n, w.Len())
	runtime.KeepAlive(w)
	return each
}

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
