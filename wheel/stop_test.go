package wheel_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestWheel_StopFromACallbackIsRefused(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w, other := newWheel(t, wheel.WithExecutor(e)), newWheel(t, wheel.WithExecutor(e))
		after(t, other, time.Hour, func() {})
		var ran counter
		after(t, w, time.Second, func() {
			_, err := w.Stop(context.Background())
			require.ErrorIs(t, err, wheel.ErrStopFromTask)
			rest, err := other.Stop(context.Background())
			require.NoError(t, err, "another wheel may be stopped")
			require.Len(t, rest, 1)
			ran.inc()
		})
		after(t, w, 2*time.Second, ran.inc)
		pass(2 * time.Second)
		require.EqualValues(t, 2, ran.Load(), "the wheel goes on")
	})
}

func TestWheel_StopTwiceOrUnusedReturnsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWheel(t)
		for range 2 {
			rest, err := w.Stop(context.Background())
			require.NoError(t, err)
			require.Empty(t, rest)
		}
		_, err := w.AfterFunc(0, func() {})
		require.ErrorIs(t, err, wheel.ErrStopped)
	})
}

func TestWheel_StopWaitsForRunningCallbacksWithinItsContext(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e))
		release := make(chan struct{})
		var begun, ended counter
		for range 300 {
			after(t, w, time.Second, func() { begun.inc(); <-release; ended.inc() })
		}
		pass(time.Second + time.Millisecond) // their tick is over; with some executors few of them have begun
		running := begun.Load()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		start := time.Now()
		rest, err := w.Stop(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(start))
		running = max(running, begun.Load())
		require.EqualValues(t, 300, running+int64(len(rest)), "begun or returned, each once")
		close(release)
		pass(time.Minute)
		require.Equal(t, running, ended.Load(), "nothing begins after Stop has returned")
	})
}

func TestDefault_IsSharedAndCannotBeStopped(t *testing.T) {
	w := wheel.Default()
	require.Same(t, w, wheel.Default())
	_, err := w.Stop(context.Background())
	require.ErrorIs(t, err, wheel.ErrDefaultWheel)
	require.Zero(t, w.Len())
}
