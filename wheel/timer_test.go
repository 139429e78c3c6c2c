package wheel_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// Guarantees: W5.
func TestTimer_StopEndsThePendingEntryOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		var ran counter
		timer := after(t, w, time.Second, ran.inc)
		require.True(t, timer.Pending())
		require.True(t, timer.Stop())
		require.False(t, timer.Pending())
		require.False(t, timer.Stop(), "stopped already")
		pass(time.Minute)
		require.Zero(t, ran.Load())

		timer = after(t, w, time.Second, ran.inc)
		pass(time.Second)
		require.EqualValues(t, 1, ran.Load())
		require.False(t, timer.Stop(), "fired already")

		timer = after(t, w, time.Second, ran.inc)
		_, err := w.Stop(context.Background())
		require.NoError(t, err)
		require.False(t, timer.Stop(), "returned by the wheel's Stop")
	})
}

func TestTimer_ZeroIsExpired(t *testing.T) {
	t.Parallel()
	var timer wheel.Timer
	require.False(t, timer.Stop())
	require.False(t, timer.Reschedule(time.Second))
	require.False(t, timer.Pending())
	require.Equal(t, wheel.Timer{}, timer)
}

// Guarantees: W7.
func TestTimer_AStaleHandleDoesNotReachTheNextEntryInItsMemory(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t, wheel.WithExecutor(wheel.Inline()))
		var ran counter
		var stale []wheel.Timer
		for range 1000 { // the next ones reuse the nodes of these
			stopped := after(t, w, time.Second, ran.inc)
			require.True(t, stopped.Stop())
			stale = append(stale, stopped)
		}
		var fresh []wheel.Timer
		for range 10 {
			fresh = append(fresh, after(t, w, time.Second, ran.inc))
		}
		for _, s := range stale {
			require.False(t, s.Stop())
			require.False(t, s.Reschedule(0))
			require.False(t, s.Pending())
		}
		for _, f := range fresh {
			require.True(t, f.Pending())
		}
		pass(time.Second)
		require.EqualValues(t, 10, ran.Load())
	})
}

// Guarantees: W7.
func TestTimer_AStaleHandleStaysStaleWhenItsMemoryWasGivenBackAndMadeAnew(t *testing.T) {
	t.Run("the first in, the first out", func(t *testing.T) { staleAfterABurst(t, func([]wheel.Timer) {}) })
	t.Run("the last in, the first out", func(t *testing.T) { staleAfterABurst(t, slices.Reverse[[]wheel.Timer]) })
}

func staleAfterABurst(t *testing.T, arrange func([]wheel.Timer)) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		var ran counter
		const n = 20_000 // many chunks, most of which are dropped when all of it is stopped
		stale := make([]wheel.Timer, n)
		for k := range stale {
			stale[k] = after(t, w, time.Hour, ran.inc)
		}
		arrange(stale)
		for _, s := range stale {
			require.True(t, s.Stop())
		}
		for range n {
			after(t, w, time.Hour, ran.inc)
		}
		for _, s := range stale {
			require.False(t, s.Pending())
			require.False(t, s.Stop())
		}
		require.Equal(t, n, w.Len())
		pass(time.Hour + time.Millisecond)
		require.EqualValues(t, n, ran.Load())
	})
}

func TestTimer_RescheduleMovesTheDeadline(t *testing.T) {
	for _, to := range []time.Duration{0, time.Millisecond, time.Second, 10 * time.Second, 11 * time.Second, time.Minute, 3 * time.Hour} {
		t.Run("to "+to.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWheel(t)
				var fired atomic.Pointer[time.Time]
				var ran counter
				timer := after(t, w, 10*time.Second, func() { now := time.Now(); fired.Store(&now); ran.inc() })
				pass(5 * time.Second)
				moved := time.Now()
				require.True(t, timer.Reschedule(to))
				pass(4 * time.Hour)
				require.EqualValues(t, 1, ran.Load())
				require.GreaterOrEqual(t, fired.Load().Sub(moved), to)
				require.LessOrEqual(t, fired.Load().Sub(moved), to+time.Millisecond)
				require.False(t, timer.Reschedule(time.Second), "expired")
				pass(time.Minute)
				require.EqualValues(t, 1, ran.Load(), "an expired handle does not revive its entry")
			})
		})
	}
}

func TestTimer_RescheduleForEverKeepsOneEntry(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		var ran counter
		timer := after(t, w, 30*time.Second, ran.inc)
		for range 10_000 {
			time.Sleep(time.Second)
			require.True(t, timer.Reschedule(30*time.Second))
		}
		require.Zero(t, ran.Load())
		require.Equal(t, 1, w.Len())
		pass(31 * time.Second)
		require.EqualValues(t, 1, ran.Load())
	})
}
