package wheel_test

import (
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// Guarantees: W17.
func TestWheel_IdleAndFarTimersCauseNoWakeups(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		require.True(t, after(t, w, time.Millisecond, func() {}).Stop())
		pass(time.Second)
		before := w.Stats().Wakeups
		pass(24 * time.Hour)
		require.Equal(t, before, w.Stats().Wakeups, "empty")
		for range 1000 {
			after(t, w, 25*time.Hour+time.Duration(rand.Int64N(int64(time.Hour))), func() {})
		}
		before = w.Stats().Wakeups
		pass(24 * time.Hour)
		require.LessOrEqual(t, w.Stats().Wakeups-before, int64(2), "1000 far timers")
	})
}

func TestWheel_SchedulingAndStoppingInTurnDoesNotWakeTheWorkerEachTime(t *testing.T) {
	for _, c := range []struct {
		what   string
		others int
		wait   func()
	}{
		{"beside others", 1, synctest.Wait},
		{"of an empty wheel", 0, synctest.Wait},
		{"of a wheel that is empty for a moment", 0, func() {}},
	} {
		t.Run(c.what, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWheel(t)
				for range c.others {
					defer after(t, w, time.Minute, func() {}).Stop()
				}
				for range 1000 {
					timer := after(t, w, time.Minute, func() {})
					synctest.Wait() // the worker sees it
					require.True(t, timer.Stop())
					c.wait()
				}
				require.LessOrEqual(t, w.Stats().Wakeups, int64(4))
				pass(time.Second)
				require.EqualValues(t, 1-c.others, w.Retirements(), "workers that have ended")
			})
		})
	}
}

// Guarantees: W3.
func TestWheel_AnEarlierTimerWakesTheSleepingWorker(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		after(t, w, time.Hour, func() {})
		pass(time.Second)
		for _, d := range []time.Duration{time.Minute, time.Second, time.Millisecond, 10 * time.Microsecond} {
			var took atomic.Int64
			start := time.Now()
			after(t, w, d, func() { took.Store(int64(time.Since(start))) })
			pass(d + time.Millisecond)
			require.Equal(t, d, time.Duration(took.Load()))
		}
	})
}

// Guarantees: W15.
func TestWheel_ConstantGoroutinesForAnyNumberOfTimers(t *testing.T) {
	// Not parallel: it counts the goroutines of the process.
	w := newWheel(t, wheel.WithExecutor(wheel.Pool(2)))
	before := runtime.NumGoroutine()
	for range 100_000 {
		after(t, w, time.Hour, func() {})
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before+1, "the worker")
}

// Guarantees: W17.
func TestWheel_AnIdleWheelHasNoGoroutines(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		// Not stopped: were a goroutine left, the bubble would report it as a deadlock.
		w, err := wheel.New(wheel.WithExecutor(e))
		require.NoError(t, err)
		var ran counter
		for range 3 {
			for range 100 {
				after(t, w, time.Second, ran.inc)
			}
			pass(time.Minute)
		}
		require.EqualValues(t, 300, ran.Load(), "it starts again when it is needed")
	})
}

// goleak in a user's tests finds a worker that stays until the deadline of an entry that was stopped.
// Guarantees: W17.
func TestWheel_AWheelWhoseEntriesWereStoppedHasNoGoroutines(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		for _, far := range []time.Duration{time.Second, time.Minute, time.Hour, 24 * 365 * time.Hour} {
			w := newWheel(t)
			for range 3 {
				before, woken := w.Retirements(), w.Stats().Wakeups
				timers := make([]wheel.Timer, 100)
				for k := range timers {
					timers[k] = after(t, w, far+time.Duration(k), func() {})
				}
				pass(far / 2) // the worker sleeps until the first deadline
				for _, timer := range timers {
					require.True(t, timer.Stop())
				}
				pass(250 * time.Millisecond)
				require.Equal(t, before+1, w.Retirements(), "the worker of timers in %v", far)
				require.LessOrEqual(t, w.Stats().Wakeups-woken, int64(6))
			}
		}
	})
}
