package wheel_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// callBelow calls f from below that many stack frames.
func callBelow(frames int, f func()) {
	if frames > 0 {
		callBelow(frames-1, f)
		return
	}
	f()
}

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
		after(t, w, 2*time.Second, func() {
			callBelow(1000, func() {
				_, err := w.Stop(context.Background())
				require.ErrorIs(t, err, wheel.ErrStopFromTask, "however deep the stack is")
			})
			ran.inc()
		})
		pass(2 * time.Second)
		require.EqualValues(t, 3, ran.Load(), "the wheel goes on")
	})
}

func TestWheel_StopTwiceOrUnusedReturnsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
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

// Guarantees: W10.
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

// ends is what became of entries, by their numbers.
type ends struct {
	began, stopped, returned map[int]int
}

// stopInTheMiddle lets entries come due whose callbacks block until release, stops every other one, and then
// the wheel with a context that ends at once. Callbacks that begin after that are in late.
func stopInTheMiddle(t *testing.T, opts ...wheel.Option) (e ends, late int) {
	e = ends{map[int]int{}, map[int]int{}, map[int]int{}}
	var mu sync.Mutex
	var over bool
	release := make(chan struct{})
	w, err := wheel.NewTyped(func(k int) {
		mu.Lock()
		if e.began[k]++; over {
			late++
		}
		mu.Unlock()
		<-release
	}, opts...)
	require.NoError(t, err)
	timers := make([]wheel.Timer, 300)
	for k := range timers {
		timers[k], err = w.Add(k, time.Second+time.Duration(k%3)*time.Millisecond)
		require.NoError(t, err)
	}
	pass(2 * time.Second)
	for k := 1; k < len(timers); k += 2 {
		if timers[k].Stop() {
			e.stopped[k]++
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	rest, err := w.Stop(ctx)
	mu.Lock()
	over = true
	mu.Unlock()
	require.ErrorIs(t, err, context.Canceled)
	for _, u := range rest {
		require.Zero(t, u.Left)
		e.returned[u.Value]++
	}
	for _, timer := range timers {
		require.False(t, timer.Pending())
		require.False(t, timer.Stop())
	}
	close(release)
	pass(time.Minute)
	return e, late
}

// Guarantees: W5, W10.
func TestWheel_StopReturnsNoEntryThatTimerStopFoundEnded(t *testing.T) {
	eachExecutor(t, func(t *testing.T, x wheel.Executor) {
		e, late := stopInTheMiddle(t, wheel.WithExecutor(x))
		require.Zero(t, late, "began after Stop had returned")
		require.NotEmpty(t, e.began)
		for k := range 300 {
			require.Equal(t, 1, e.began[k]+e.stopped[k]+e.returned[k], "entry %d has exactly one end", k)
			if k%2 == 1 && e.stopped[k] == 0 {
				require.Zero(t, e.returned[k], "Timer.Stop of entry %d returned false, and the wheel's Stop returned it", k)
			}
		}
	})
}

func TestPool_WhatWaitsCanStillBeStopped(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e, _ := stopInTheMiddle(t, wheel.WithExecutor(wheel.Pool(4)))
		require.Len(t, e.began, 4)
		require.GreaterOrEqual(t, len(e.stopped), 146)
		require.LessOrEqual(t, len(e.stopped), 150)
	})
}
