package wheel_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestSleep_BlocksForItsDuration(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e))
		for _, d := range []time.Duration{-1, 0, 1, time.Millisecond, time.Minute} {
			start := time.Now()
			require.NoError(t, w.Sleep(context.Background(), d))
			require.Equal(t, max(d, 0), time.Since(start))
		}
		require.Zero(t, w.Len())
	})
}

func TestSleep_EndsWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		start := time.Now()
		require.ErrorIs(t, w.Sleep(ctx, time.Minute), context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(start))
		require.Zero(t, w.Len(), "the entry is gone")
		require.ErrorIs(t, w.Sleep(ctx, 0), context.DeadlineExceeded, "a done context wins")
	})
}

// Guarantees: W21.
func TestSleep_EndsWithTheWheel(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		slept := make(chan error)
		go func() { slept <- w.Sleep(context.Background(), time.Hour) }()
		pass(time.Second)
		rest, err := w.Stop(context.Background())
		require.NoError(t, err)
		require.Empty(t, rest)
		require.ErrorIs(t, <-slept, wheel.ErrStopped)
	})
}
