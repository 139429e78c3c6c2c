package wheel_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestTyped_FiresEachValueOnce(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		var sum atomic.Uint64
		w, err := wheel.NewTyped(func(v uint64) { sum.Add(v) }, wheel.WithExecutor(e))
		require.NoError(t, err)
		var stopped wheel.Timer
		for v := range uint64(1001) {
			timer, err := w.Add(v, time.Duration(v+1)*time.Second)
			require.NoError(t, err)
			if v == 1000 {
				stopped = timer
			}
		}
		require.Equal(t, 1001, w.Len())
		require.True(t, stopped.Stop())
		pass(500 * time.Second)
		require.EqualValues(t, 499*500/2, sum.Load())
		rest, err := w.Stop(context.Background())
		require.NoError(t, err)
		require.Len(t, rest, 500)
		for _, u := range rest {
			require.Equal(t, time.Duration(u.Value-499)*time.Second, u.Left)
		}
		_, err = w.Add(1, 0)
		require.ErrorIs(t, err, wheel.ErrStopped)
		require.EqualValues(t, 500, w.Stats().Fired)
	})
}
