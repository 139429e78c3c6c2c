package wheel_test

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// FuzzOptions makes wheels of arbitrary options. One that is accepted works.
func FuzzOptions(f *testing.F) {
	for _, d := range []int64{0, -1, 1, 999, 1000, 1001, int64(time.Millisecond), int64(time.Hour), int64(time.Hour) + 1, math.MaxInt64, math.MinInt64} {
		f.Add(d, int64(512), int64(0), int64(4), d)
	}
	for _, n := range []int64{0, -1, 1, 3, 65536, 65537, 1 << 31, 1 << 32, math.MaxInt64, math.MinInt64} {
		f.Add(int64(time.Millisecond), n, int64(0), int64(1), int64(time.Second))
		f.Add(int64(time.Millisecond), int64(2), n, int64(1), n)
		f.Add(int64(time.Millisecond), int64(2), int64(0), n, int64(0))
	}
	f.Fuzz(func(t *testing.T, tick, buckets, most, pool, delay int64) {
		if pool > 100 {
			pool %= 100 // a pool has as many goroutines
		}
		inRange := tick >= int64(time.Microsecond) && tick <= int64(time.Hour) && buckets >= 1 && buckets <= 65536 &&
			int(most) >= 0 && pool >= 1
		synctest.Test(t, func(t *testing.T) {
			w, err := wheel.New(wheel.WithTickDuration(time.Duration(tick)), wheel.WithTicksPerWheel(int(buckets)),
				wheel.WithMaxPendingTimeouts(int(most)), wheel.WithExecutor(wheel.Pool(int(pool))))
			require.NoError(t, redistest.CheckRefusal(err, inRange))
			if err != nil {
				return
			}
			var fired counter
			d := time.Duration(delay)
			timer, err := w.AfterFunc(d, fired.inc)
			require.NoError(t, err)
			if d < 24*time.Hour {
				pass(max(0, d) + time.Duration(tick))
				require.EqualValues(t, 1, fired.Load())
			} else {
				pass(time.Hour)
				require.True(t, timer.Stop())
			}
			_, err = w.Every(d, func() {})
			require.NoError(t, redistest.CheckRefusal(err, d > 0))
			_, err = w.Stop(context.Background())
			require.NoError(t, err)
		})
	})
}
