package fleets_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

func TestFairness(t *testing.T) {
	t.Parallel()
	for want, counts := range map[float64][]float64{
		1: {7, 7, 7, 7}, 0.25: {0, 9, 0, 0}, 0.5: {3, 0, 3, 0}, 0.9: {1, 2}, 0: {0, 0},
	} {
		require.InDelta(t, want, fairness(counts), 1e-9, "%v", counts)
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	var all []time.Duration
	for i := range time.Duration(101) {
		all = append(all, i)
	}
	for _, percent := range []int{0, 50, 99, 100} {
		require.Equal(t, time.Duration(percent), quantile(all, percent))
	}
}

func TestRecorder_CountsOperationsThatBeginInTheWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		r := &recorder{from: begin.Add(10 * time.Second), to: begin.Add(20 * time.Second)}
		for _, end := range []int{9, 11, 19, 24} {
			since := r.waits()
			time.Sleep(time.Until(begin.Add(time.Duration(end) * time.Second)))
			if time.Now().Before(r.to) {
				r.begun(since)
				continue
			}
			require.Equal(t, result{Times: []time.Duration{2 * time.Second, 8 * time.Second}, Waiting: time.Second}, r.result())
			r.begun(since)
		}
		require.Equal(t, result{Times: []time.Duration{2 * time.Second, 8 * time.Second}}, r.result())
	})
}

func TestLoad_WaitsForATurn(t *testing.T) {
	t.Parallel()
	l := load{Work: "mutex", Hold: 100 * time.Millisecond}
	require.Equal(t, 6496*time.Millisecond, l.turn(64))
	l.Work = "semaphore"
	require.Equal(t, 5196800*time.Microsecond, l.turn(256), "five at a time")
	require.Zero(t, load{Work: "tasks"}.turn(0))
}

// A script counts once whatever it calls. SETs count for redsync, whose other calls are scripts.
func TestCallsOf(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	ctx := t.Context()
	require.NoError(t, redis.NewScript("return redis.call('set', KEYS[1], redis.call('incr', KEYS[2]))").Run(ctx, rdb, []string{"a", "b"}).Err())
	require.NoError(t, rdb.Get(ctx, "a").Err())
	require.InDelta(t, 2, callsOf(t, load{}, rdb), 0, "EVALSHA without the script, and EVAL")
	require.InDelta(t, 3, callsOf(t, load{Impl: "redsync"}, rdb), 0)
}
