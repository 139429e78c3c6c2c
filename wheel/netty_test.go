package wheel_test

// The behaviours of Netty's HashedWheelTimerTest, in virtual time.

import (
	"context"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

func newTimeout(t testing.TB, w *wheel.Wheel, k wheel.TimerTask, d time.Duration) *wheel.Timeout {
	t.Helper()
	timeout, err := w.NewTimeout(k, d)
	require.NoError(t, err)
	return timeout
}

func TestTimeout_DoesNotRunBeforeItsDelay(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var k task
		timeout := newTimeout(t, newWheel(t), &k, 10*time.Second)
		pass(3 * time.Second)
		require.Zero(t, k.ran.Load())
		require.False(t, timeout.IsExpired())
		require.Contains(t, timeout.String(), "pending, deadline in 7s")
		require.True(t, timeout.Cancel())
	})
}

func TestTimeout_RunsAfterItsDelay(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var k task
		timeout := newTimeout(t, newWheel(t), &k, 2*time.Second)
		pass(2 * time.Second)
		require.EqualValues(t, 1, k.ran.Load())
		require.True(t, timeout.IsExpired())
		require.Same(t, &k, timeout.Task())
		require.False(t, timeout.Cancel(), "too late")
		require.Zero(t, k.cancelled.Load())
	})
}

// Guarantees: W10.
func TestWheel_StopReturnsWhatHasNotFired(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		var k task
		for range 3 {
			newTimeout(t, w, &k, time.Second)
		}
		pass(time.Second)
		rest, err := w.Stop(context.Background())
		require.NoError(t, err)
		require.Empty(t, rest, "all had fired")
		require.EqualValues(t, 3, k.ran.Load())

		w = newWheel(t)
		for range 5 {
			newTimeout(t, w, &k, 5*time.Second)
		}
		pass(time.Second)
		start := time.Now()
		rest, err = w.Stop(context.Background())
		require.NoError(t, err)
		require.Len(t, rest, 5)
		require.Zero(t, time.Since(start), "Stop does not wait for deadlines")
		for _, u := range rest {
			require.Equal(t, 4*time.Second, u.Left)
			require.True(t, u.Timeout.IsCancelled())
		}
	})
}

// Guarantees: W10.
func TestWheel_RefusesEverythingAfterStop(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		after(t, w, time.Millisecond, func() {})
		pass(time.Second)
		_, err := w.Stop(context.Background())
		require.NoError(t, err)
		_, err = w.NewTimeout(&task{}, time.Second)
		require.ErrorIs(t, err, wheel.ErrStopped)
		_, err = w.AfterFunc(time.Second, func() {})
		require.ErrorIs(t, err, wheel.ErrStopped)
		_, err = w.Every(time.Second, func() {})
		require.ErrorIs(t, err, wheel.ErrStopped)
		require.ErrorIs(t, w.Sleep(context.Background(), time.Second), wheel.ErrStopped)
		require.Zero(t, w.Len())
	})
}

func TestTimeout_TaskSchedulesItselfAgainBeyondTheWheelLength(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t, wheel.WithTickDuration(100*time.Millisecond), wheel.WithTicksPerWheel(32))
		var runs atomic.Int64
		again := wheel.TimerTaskFunc(func(timeout *wheel.Timeout) {
			runs.Add(1)
			_, err := w.NewTimeout(timeout.Task(), 4*time.Second) // 40 ticks on a wheel of 32
			require.NoError(t, err)
		})
		newTimeout(t, w, again, 4*time.Second)
		pass(13 * time.Second)
		require.EqualValues(t, 3, runs.Load())
		rest, err := w.Stop(context.Background())
		require.NoError(t, err)
		require.Len(t, rest, 1)
	})
}

// Guarantees: W3.
func TestTimeout_100000OfThemExecuteOnTime(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const tick, delay = 200 * time.Millisecond, 125 * time.Millisecond
		w := newWheel(t, wheel.WithTickDuration(tick))
		var early, late, ran atomic.Int64
		for range 100_000 {
			start := time.Now()
			newTimeout(t, w, wheel.TimerTaskFunc(func(*wheel.Timeout) {
				switch took := time.Since(start); {
				case took < delay:
					early.Add(1)
				case took >= delay+tick:
					late.Add(1)
				}
				ran.Add(1)
			}), delay)
		}
		pass(time.Second)
		require.EqualValues(t, 100_000, ran.Load())
		require.Zero(t, early.Load())
		require.Zero(t, late.Load())
	})
}

func TestTimeout_RunsOnEachExecutor(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e))
		var k task
		for range 1000 {
			newTimeout(t, w, &k, time.Second)
		}
		pass(time.Second + time.Millisecond)
		require.EqualValues(t, 1000, k.ran.Load())
	})
}

func TestWheel_RefusesOneMoreThanMaxPending(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t, wheel.WithMaxPendingTimeouts(2))
		newTimeout(t, w, &task{}, 5*time.Second)
		after(t, w, 5*time.Second, func() {})
		_, err := w.NewTimeout(&task{}, time.Second)
		require.ErrorIs(t, err, wheel.ErrTooManyPending)
		_, err = w.AfterFunc(time.Second, func() {})
		require.ErrorIs(t, err, wheel.ErrTooManyPending)
		require.Equal(t, 2, w.Len())
	})
}

func TestWheel_CancellingMakesRoomAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t, wheel.WithMaxPendingTimeouts(1))
		var k task
		require.True(t, newTimeout(t, w, &k, 5*time.Second).Cancel())
		require.True(t, after(t, w, 5*time.Second, func() {}).Stop())
		newTimeout(t, w, &k, time.Second)
		pass(time.Second)
		require.EqualValues(t, 1, k.ran.Load())
	})
}

func TestWheel_FiringMakesRoomBeforeTheTaskBegins(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e), wheel.WithMaxPendingTimeouts(1),
			wheel.WithTickDuration(25*time.Millisecond), wheel.WithTicksPerWheel(4))
		var k task
		after(t, w, 90*time.Millisecond, func() {
			_, err := w.NewTimeout(&k, 90*time.Millisecond)
			require.NoError(t, err)
		})
		pass(time.Second)
		require.EqualValues(t, 1, k.ran.Load())
	})
}

func TestWheel_LenCountsPendingEntries(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		var seen atomic.Int64
		seen.Store(-1)
		first := newTimeout(t, w, &task{}, time.Second)
		second := newTimeout(t, w, &task{}, time.Second)
		after(t, w, 500*time.Millisecond, func() { seen.Store(int64(w.Len())) })
		require.Equal(t, 3, w.Len())
		require.True(t, first.Cancel())
		require.True(t, second.Cancel())
		require.Equal(t, 1, w.Len())
		pass(500 * time.Millisecond)
		require.Zero(t, seen.Load(), "the entry does not count itself while it runs")
	})
}

// Guarantees: W2.
func TestTimeout_AnEndlessDelayDoesNotOverflow(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		var k task
		pass(time.Second) // so that the deadline lies beyond the largest number
		timeout := newTimeout(t, w, &k, math.MaxInt64)
		pass(time.Hour)
		require.Zero(t, k.ran.Load())
		require.True(t, timeout.Cancel())
	})
}

func TestWheel_StopCancelsAndTellsEachTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		var k task
		for range 10 {
			newTimeout(t, w, &k, time.Minute)
		}
		rest, err := w.Stop(context.Background())
		require.NoError(t, err)
		require.Len(t, rest, 10)
		for _, u := range rest {
			require.True(t, u.Timeout.IsCancelled())
			require.False(t, u.Timeout.Cancel())
		}
		require.EqualValues(t, 10, k.cancelled.Load())
		require.Zero(t, k.ran.Load())
	})
}

func TestTimeout_CancelCallsTheHookInsteadOfTheTask(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		var k task
		timeout := newTimeout(t, w, &k, time.Second)
		require.Equal(t, 1, w.Len())
		require.True(t, timeout.Cancel())
		require.False(t, timeout.Cancel(), "only the first call cancels")
		pass(time.Minute)
		require.EqualValues(t, 1, k.cancelled.Load())
		require.Zero(t, k.ran.Load())
		require.True(t, timeout.IsCancelled())
		require.False(t, timeout.IsExpired())
	})
}

// Guarantees: W5.
func TestTimeout_CancelledWhileTheirTickIsHeldUpNeverRun(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t, wheel.WithExecutor(wheel.Inline()))
		var k task
		newTimeout(t, w, wheel.TimerTaskFunc(func(*wheel.Timeout) { time.Sleep(time.Second) }), time.Second)
		others := make([]*wheel.Timeout, 10)
		for i := range others {
			others[i] = newTimeout(t, w, &k, time.Second)
		}
		pass(1500 * time.Millisecond) // the first one blocks the worker
		for _, timeout := range others {
			require.True(t, timeout.Cancel())
		}
		pass(time.Minute)
		require.Zero(t, k.ran.Load())
		require.EqualValues(t, 10, k.cancelled.Load())
		require.Zero(t, w.Len())
	})
}
