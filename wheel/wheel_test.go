package wheel_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// Guarantees: W2, W3.
func TestWheel_NeverEarlyAndAtMostOneTickLate(t *testing.T) {
	const tick = time.Millisecond
	const round = 512 * tick
	delays := []time.Duration{
		math.MinInt64, -1, 0, 1, tick - 1, tick, tick + 1, 7 * tick, round - 1, round, round + 1, 3 * round,
		64*round - 1, 64 * round, 64*round + 1, 100 * round, 2048*round - 1, 2048 * round, 5000 * round, 48 * time.Hour,
	}
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e))
		var ran counter
		for _, d := range delays {
			start := time.Now()
			after(t, w, d, func() {
				took := time.Since(start)
				if took < d || took > max(d, 0)+tick {
					t.Errorf("delay %v fired after %v", d, took)
				}
				ran.inc()
			})
		}
		pass(49 * time.Hour)
		require.EqualValues(t, len(delays), ran.Load())
	})
}

// Guarantees: W2.
func TestWheel_FiresOnTimeForAnyMixOfDelays(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		ds := rapid.SliceOfN(rapid.Int64Range(0, int64(2*time.Hour)), 1, 50).Draw(rt, "delays")
		gaps := rapid.SliceOfN(rapid.Int64Range(0, int64(time.Minute)), len(ds), len(ds)).Draw(rt, "gaps")
		rapid.SyncTest(rt, func(rt *rapid.T) {
			w, err := wheel.New()
			require.NoError(rt, err)
			var ran counter
			for k, d := range ds {
				start := time.Now()
				_, err := w.AfterFunc(time.Duration(d), func() {
					if late := time.Since(start) - time.Duration(d); late < 0 || late > time.Millisecond {
						rt.Errorf("delay %v late by %v", time.Duration(d), late)
					}
					ran.inc()
				})
				require.NoError(rt, err)
				time.Sleep(time.Duration(gaps[k]))
			}
			time.Sleep(2*time.Hour + time.Millisecond)
			_, err = w.Stop(context.Background())
			require.NoError(rt, err)
			require.EqualValues(rt, len(ds), ran.Load())
		})
	})
}
