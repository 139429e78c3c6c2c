package wheel_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cogwheel-go/cogwheel/wheel"
)

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

func TestTimer_StopEndsThePendingEntryOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
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
	require.False(t, timer.Reset(time.Second))
	require.False(t, timer.Pending())
	require.Equal(t, wheel.Timer{}, timer)
}

func TestTimer_AStaleHandleDoesNotReachTheNextTenant(t *testing.T) {
	bubble(t, func(t *testing.T) {
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
			require.False(t, s.Reset(0))
			require.False(t, s.Pending())
		}
		for _, f := range fresh {
			require.True(t, f.Pending())
		}
		pass(time.Second)
		require.EqualValues(t, 10, ran.Load())
	})
}

func TestTimer_AStaleHandleStaysStaleWhenItsMemoryWasGivenBackAndMadeAnew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWheel(t)
		var ran counter
		const n = 20_000 // many chunks, most of which are dropped when all of it is stopped
		stale := make([]wheel.Timer, n)
		for k := range stale {
			stale[k] = after(t, w, time.Hour, ran.inc)
		}
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

func TestTimer_ResetMovesTheDeadline(t *testing.T) {
	for _, to := range []time.Duration{0, time.Millisecond, time.Second, 10 * time.Second, 11 * time.Second, time.Minute, 3 * time.Hour} {
		t.Run("to "+to.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWheel(t)
				var fired atomic.Pointer[time.Time]
				var ran counter
				timer := after(t, w, 10*time.Second, func() { now := time.Now(); fired.Store(&now); ran.inc() })
				pass(5 * time.Second)
				reset := time.Now()
				require.True(t, timer.Reset(to))
				pass(4 * time.Hour)
				require.EqualValues(t, 1, ran.Load())
				require.GreaterOrEqual(t, fired.Load().Sub(reset), to)
				require.LessOrEqual(t, fired.Load().Sub(reset), to+time.Millisecond)
				require.False(t, timer.Reset(time.Second), "expired: nothing to reset")
				pass(time.Minute)
				require.EqualValues(t, 1, ran.Load(), "an expired handle does not revive its entry")
			})
		})
	}
}

func TestTimer_ResetForEverKeepsOneEntry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWheel(t)
		var ran counter
		timer := after(t, w, 30*time.Second, ran.inc)
		for range 10_000 {
			time.Sleep(time.Second)
			require.True(t, timer.Reset(30*time.Second))
		}
		require.Zero(t, ran.Load())
		require.Equal(t, 1, w.Len())
		pass(31 * time.Second)
		require.EqualValues(t, 1, ran.Load())
	})
}

func TestWheel_CallbacksMayUseTheWheel(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e))
		var ran counter
		var self, next, later atomic.Pointer[wheel.Timer]
		set := func(p *atomic.Pointer[wheel.Timer], timer wheel.Timer) { p.Store(&timer) }
		set(&self, after(t, w, time.Second, func() {
			require.False(t, self.Load().Stop(), "it has fired")
			require.False(t, self.Load().Reset(time.Second))
			next.Load().Stop()
			require.True(t, later.Load().Reset(time.Second))
			_, err := w.AfterFunc(0, ran.inc)
			require.NoError(t, err)
		}))
		set(&next, after(t, w, time.Second+time.Millisecond, func() { t.Error("stopped by the one before it") }))
		set(&later, after(t, w, time.Hour, ran.inc))
		pass(3 * time.Second)
		require.EqualValues(t, 2, ran.Load())
		require.Zero(t, w.Len())
	})
}

func TestWheel_APanicHarmsNoOtherEntry(t *testing.T) {
	boom := errors.New("boom")
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		var values []any
		handled := make(chan any, 10)
		w := newWheel(t, wheel.WithExecutor(e), wheel.WithPanicHandler(func(v any, stack []byte) {
			require.Contains(t, string(stack), "wheel_test")
			handled <- v
		}))
		var ran counter
		bad := map[int]func(){
			0:  func() { panic("value") },
			10: func() { panic(boom) },
			11: func() { panic(nil) },
			12: func() { runtime.Goexit() },
			49: func() { panic("last") },
		}
		for k := range 50 {
			f := bad[k]
			if f == nil {
				f = ran.inc
			}
			after(t, w, time.Second, f)
		}
		after(t, w, 2*time.Second, ran.inc)
		pass(3 * time.Second)
		require.EqualValues(t, 46, ran.Load())
		for range 4 {
			values = append(values, <-handled)
		}
		require.Empty(t, handled, "each panic is reported once, Goexit is none")
		require.Contains(t, values, any("value"))
		require.Contains(t, values, any(boom))
		require.Contains(t, values, any("last"))
	})
}

func TestWheel_APanicIsLoggedByDefault(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var out bytes.Buffer
		w := newWheel(t, wheel.WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
		after(t, w, time.Second, func() { panic("boom") })
		pass(time.Second)
		require.Contains(t, out.String(), "callback panicked")
		require.Contains(t, out.String(), "boom")
	})
}

// panicky panics when it is told of its cancellation.
type panicky struct{ task }

func (p *panicky) Cancelled(*wheel.Timeout) { panic("in the hook") }

func TestTimeout_APanickingHookIsReported(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var reported counter
		w := newWheel(t, wheel.WithPanicHandler(func(any, []byte) { reported.inc() }))
		require.True(t, newTimeout(t, w, &panicky{}, time.Second).Cancel())
		newTimeout(t, w, &panicky{}, time.Second)
		newTimeout(t, w, &panicky{}, time.Second)
		rest, err := w.Stop(context.Background())
		require.NoError(t, err)
		require.Len(t, rest, 2)
		require.EqualValues(t, 3, reported.Load())
	})
}

func TestWheel_ABlockingCallbackDelaysNoOther(t *testing.T) {
	for name, e := range map[string]wheel.Executor{"Goroutines": wheel.Goroutines(), "Pool(1)": wheel.Pool(1), "Pool(4)": wheel.Pool(4)} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWheel(t, wheel.WithExecutor(e))
				release := make(chan struct{})
				var worst atomic.Int64
				var ran counter
				for k := range 10_000 {
					d := time.Second + time.Duration(k)*10*time.Microsecond
					start := time.Now()
					f := func() {
						worst.Store(max(worst.Load(), int64(time.Since(start)-d)))
						ran.inc()
					}
					if k%1000 == 537 { // in the middle of a batch
						f = func() { <-release }
					}
					after(t, w, d, f)
				}
				pass(3 * time.Second)
				require.EqualValues(t, 10_000-10, ran.Load())
				require.LessOrEqual(t, time.Duration(worst.Load()), 5*time.Millisecond)
				close(release)
			})
		})
	}
}

func TestWheel_ManyBlockingCallbacksAllBegin(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWheel(t, wheel.WithExecutor(wheel.Pool(2)))
		release := make(chan struct{})
		var began counter
		for range 3000 {
			after(t, w, time.Second, func() { began.inc(); <-release })
		}
		pass(1100 * time.Millisecond)
		require.EqualValues(t, 3000, began.Load(), "every callback blocks, yet all began within 100 ms")
		close(release)
		pass(time.Second)
		var ran counter
		after(t, w, time.Second, ran.inc)
		pass(time.Second)
		require.EqualValues(t, 1, ran.Load())
	})
}

func TestWheel_InlineDelaysOthersWhileItBlocks(t *testing.T) {
	bubble(t, func(t *testing.T) { // the documented price of Inline, and the control of the tests above
		w := newWheel(t, wheel.WithExecutor(wheel.Inline()))
		start := time.Now()
		var took atomic.Int64
		after(t, w, time.Second, func() { time.Sleep(5 * time.Second) })
		after(t, w, 2*time.Second, func() { took.Store(int64(time.Since(start))) })
		pass(time.Minute)
		require.Equal(t, 6*time.Second, time.Duration(took.Load()))
	})
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

func TestWheel_IdleAndFarTimersCauseNoWakeups(t *testing.T) {
	bubble(t, func(t *testing.T) {
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
	bubble(t, func(t *testing.T) {
		w := newWheel(t)
		for range 10_000 {
			require.True(t, after(t, w, time.Minute, func() {}).Stop())
		}
		pass(time.Hour)
		require.LessOrEqual(t, w.Stats().Wakeups, int64(4))
	})
}

func TestWheel_AnEarlierTimerWakesTheSleepingWorker(t *testing.T) {
	bubble(t, func(t *testing.T) {
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

func TestWheel_ConstantGoroutinesForAnyNumberOfTimers(t *testing.T) {
	// Not parallel: it counts the goroutines of the process.
	w := newWheel(t, wheel.WithExecutor(wheel.Pool(2)))
	before := runtime.NumGoroutine()
	for range 100_000 {
		after(t, w, time.Hour, func() {})
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before+1, "the worker")
}

func TestWheel_RunsOnAMockClock(t *testing.T) {
	t.Parallel()
	mock := clock.NewMock()
	w := newWheel(t, wheel.WithClock(mock))
	early := make(chan time.Duration, 10) // how early each fired, by the mock's time
	start := mock.Now()
	for _, d := range []time.Duration{5 * time.Millisecond, time.Second, time.Hour} {
		after(t, w, d, func() { early <- d - mock.Now().Sub(start) })
	}
	mock.Add(4 * time.Millisecond)
	require.Equal(t, 3, w.Len())
	mock.Add(time.Millisecond)
	require.LessOrEqual(t, <-early, time.Duration(0))
	require.Equal(t, 2, w.Len())
	mock.Set(start.Add(time.Hour))
	for range 2 {
		require.LessOrEqual(t, <-early, time.Duration(0))
	}
}

// steppedClock is a clock that tests move at will; its waits end when the test says so.
type steppedClock struct {
	now  atomic.Int64
	wait chan time.Time
}

func (c *steppedClock) Now() time.Time                       { return time.Unix(0, c.now.Load()) }
func (c *steppedClock) After(time.Duration) <-chan time.Time { return c.wait }

func TestWheel_AClockThatJumpsFiresLateNeverEarlyOrTwice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := &steppedClock{wait: make(chan time.Time)}
		step := func(d time.Duration) {
			c.now.Add(int64(d))
			c.wait <- time.Time{}
			time.Sleep(time.Second) // real steps give the worker time; here virtual time does
		}
		c.now.Store(int64(1000 * time.Hour))
		w := newWheel(t, wheel.WithClock(c))
		var ran counter
		after(t, w, time.Minute, ran.inc)
		time.Sleep(time.Second)
		step(-time.Hour)
		require.Zero(t, ran.Load(), "back an hour")
		step(0)
		step(time.Nanosecond)
		require.Zero(t, ran.Load(), "frozen")
		step(time.Hour + time.Minute - 2*time.Nanosecond)
		require.Zero(t, ran.Load(), "one nanosecond short")
		step(time.Nanosecond)
		require.EqualValues(t, 1, ran.Load())
		after(t, w, time.Minute, ran.inc)
		step(30 * 24 * time.Hour)
		require.EqualValues(t, 2, ran.Load(), "forward 30 days")
		step(-30 * 24 * time.Hour)
		require.EqualValues(t, 2, ran.Load(), "and back again")
	})
}

func TestWheel_TheSystemClockIsReadMonotonically(t *testing.T) {
	t.Parallel()
	require.Contains(t, wheel.SystemOrigin().String(), "m=", "a step of the wall clock would move deadlines")
}

func TestDefault_IsSharedAndCannotBeStopped(t *testing.T) {
	w := wheel.Default()
	require.Same(t, w, wheel.Default())
	_, err := w.Stop(context.Background())
	require.ErrorIs(t, err, wheel.ErrDefaultWheel)
	require.Zero(t, w.Len())
}

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
