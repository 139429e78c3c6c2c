package wheel_test

import (
	"context"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

func every(t testing.TB, w *wheel.Wheel, period time.Duration, f func()) wheel.Timer {
	t.Helper()
	timer, err := w.Every(period, f)
	require.NoError(t, err)
	return timer
}

func TestEvery_DoesNotDriftOver10000Periods(t *testing.T) {
	for _, period := range []time.Duration{time.Millisecond, 1234567 * time.Nanosecond, 20 * time.Millisecond, time.Minute} {
		t.Run(period.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWheel(t)
				start := time.Now()
				var fired atomic.Int64
				every(t, w, period, func() {
					n := fired.Add(1)
					if late := time.Since(start) - time.Duration(n)*period; late < 0 || late > time.Millisecond {
						t.Errorf("firing %d is late by %v", n, late)
					}
				})
				pass(10_000*period + period/2)
				require.EqualValues(t, 10_000, fired.Load())
			})
		})
	}
}

func TestEvery_SkipsWhatASlowCallbackMisses(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e))
		start := time.Now()
		var at []time.Duration // f never overlaps itself, so this needs no lock
		timer := every(t, w, 10*time.Millisecond, func() {
			at = append(at, time.Since(start))
			time.Sleep(25 * time.Millisecond)
		})
		pass(100 * time.Millisecond)
		require.True(t, timer.Stop())
		pass(time.Second)
		want := []time.Duration{10 * time.Millisecond, 40 * time.Millisecond, 70 * time.Millisecond, 100 * time.Millisecond}
		require.Equal(t, want, at)
	})
}

func TestEvery_StopFromInsideEndsIt(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e))
		var self atomic.Pointer[wheel.Timer]
		var ran counter
		timer := every(t, w, time.Second, func() {
			if ran.Add(1) == 3 {
				require.True(t, self.Load().Stop())
			}
		})
		self.Store(&timer)
		pass(time.Minute)
		require.EqualValues(t, 3, ran.Load())
		require.False(t, timer.Pending())
		require.Zero(t, w.Len())
	})
}

func TestEvery_StopIsFinalEvenForAFiringThatIsQueued(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t, wheel.WithExecutor(wheel.Inline()))
		after(t, w, time.Second, func() { time.Sleep(time.Second) }) // holds the firing below up
		var ran counter
		timer := every(t, w, time.Second, ran.inc)
		pass(1500 * time.Millisecond)
		require.True(t, timer.Stop())
		pass(time.Minute)
		require.Zero(t, ran.Load())
	})
}

// Guarantees: W14.
func TestEvery_KeepsItsPeriodAcrossPanicsAndReentry(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t, wheel.WithPanicHandler(func(any, []byte) {}))
		var ran, inner counter
		every(t, w, time.Second, func() {
			ran.inc()
			_, err := w.AfterFunc(time.Second, inner.inc)
			require.NoError(t, err)
			panic("boom")
		})
		pass(10*time.Second + time.Millisecond)
		require.EqualValues(t, 10, ran.Load())
		require.EqualValues(t, 9, inner.Load())
	})
}

// Guarantees: W13.
func TestEvery_AStallIsOneFiringNotMany(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := &steppedClock{wait: make(chan time.Time)}
		w := newWheel(t, wheel.WithClock(c))
		var ran counter
		every(t, w, time.Second, ran.inc)
		pass(time.Second)
		c.now.Add(int64(time.Hour))
		c.wait <- time.Time{}
		pass(time.Second)
		require.EqualValues(t, 1, ran.Load())
	})
}

func TestEvery_RescheduleMovesThePhase(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		start := time.Now()
		var at []time.Duration
		timer := every(t, w, 10*time.Second, func() { at = append(at, time.Since(start)) })
		pass(5 * time.Second)
		require.True(t, timer.Reschedule(time.Second))
		pass(21 * time.Second)
		require.Equal(t, []time.Duration{6 * time.Second, 16 * time.Second, 26 * time.Second}, at)
	})
}

// Guarantees: W2.
func TestEvery_APeriodOfCenturiesIsNotThePast(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		pass(time.Second)
		var ran counter
		timer := every(t, w, math.MaxInt64, ran.inc)
		require.True(t, timer.Reschedule(time.Second))
		pass(time.Hour)
		require.EqualValues(t, 1, ran.Load())
		require.True(t, timer.Pending())
		require.True(t, timer.Reschedule(time.Second))
		pass(time.Hour)
		require.EqualValues(t, 2, ran.Load())
	})
}

func TestEvery_TheWheelsStopReturnsIt(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		var ran counter
		every(t, w, time.Second, ran.inc)
		pass(2500 * time.Millisecond)
		rest, err := w.Stop(context.Background())
		require.NoError(t, err)
		require.Len(t, rest, 1)
		require.Equal(t, 500*time.Millisecond, rest[0].Left)
		rest[0].Func()
		require.EqualValues(t, 3, ran.Load())
	})
}

// instants checks the firings of an Every of that period: never between its instants more than once, and
// never two at a time. It returns how many there were.
type instants struct {
	period  time.Duration
	start   time.Time
	running atomic.Bool
	last    atomic.Int64 // the instant that the last firing stands for
	ran     atomic.Int64
}

func (i *instants) fire(t *testing.T) {
	if i.running.Swap(true) {
		t.Error("it overlaps itself")
	}
	defer i.running.Store(false)
	n := int64(time.Since(i.start) / i.period)
	if last := i.last.Swap(n); n <= last {
		t.Errorf("fired twice between instants %d and %d", n, n+1)
	}
	i.ran.Add(1)
}

// Guarantees: W13.
func TestEvery_AFiringThatWaitsStandsForThoseItMissed(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e))
		const period = 10 * time.Millisecond
		i := &instants{period: period, start: time.Now()}
		every(t, w, period, func() { i.fire(t) })
		for range 5000 { // 5 callbacks of 5 ms each come due in each millisecond of a second
			after(t, w, time.Duration(rand.Int64N(int64(time.Second))), func() { time.Sleep(5 * time.Millisecond) })
		}
		pass(time.Minute + period/2)
		during := i.ran.Load()
		switch e {
		case wheel.Goroutines():
			require.EqualValues(t, time.Minute/period, during, "nothing held it up")
		default:
			require.LessOrEqual(t, during, int64(time.Minute/period))
			require.GreaterOrEqual(t, during, int64(30*time.Second/period))
		}
		pass(time.Second)
		require.Equal(t, during+100, i.ran.Load(), "punctual again")
	})
}

// Guarantees: W13.
func TestEvery_AStallIsOneLateFiringAndThenTheNextInstant(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := &steppedClock{wait: make(chan time.Time)}
		w := newWheel(t, wheel.WithClock(c))
		var at []time.Duration
		every(t, w, time.Second, func() { at = append(at, time.Duration(c.now.Load())) })
		pass(time.Second)
		for _, step := range []time.Duration{3700 * time.Millisecond, 299 * time.Millisecond, time.Millisecond, time.Second} {
			c.now.Add(int64(step))
			c.wait <- time.Time{}
			pass(time.Second)
		}
		require.Equal(t, []time.Duration{3700 * time.Millisecond, 4 * time.Second, 5 * time.Second}, at)
	})
}

// Guarantees: W14.
func TestEvery_RescheduleFromInsideMovesTheFiringAfterThisOne(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e))
		start := time.Now()
		var self atomic.Pointer[wheel.Timer]
		var at []time.Duration
		timer := every(t, w, 10*time.Second, func() {
			at = append(at, time.Since(start))
			if len(at) == 1 {
				require.True(t, self.Load().Pending())
				require.True(t, self.Load().Reschedule(time.Second))
				time.Sleep(3 * time.Second) // it comes due meanwhile, and waits
			}
		})
		self.Store(&timer)
		pass(32 * time.Second)
		require.Equal(t, []time.Duration{10 * time.Second, 13 * time.Second, 21 * time.Second, 31 * time.Second}, at)
	})
}

// Guarantees: W17.
func TestEvery_WhileItRunsTheWheelIsNotWoken(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		every(t, w, time.Millisecond, func() { time.Sleep(time.Hour) })
		pass(time.Second)
		before := w.Stats().Wakeups
		pass(50 * time.Minute)
		require.LessOrEqual(t, w.Stats().Wakeups-before, int64(1))
	})
}

func TestEvery_TheWheelsStopReturnsItOnceWhileItRuns(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e))
		var ran counter
		timer := every(t, w, time.Second, func() { time.Sleep(time.Minute); ran.inc() })
		pass(2 * time.Second)
		rest, err := w.Stop(context.Background())
		require.NoError(t, err)
		require.Len(t, rest, 1)
		require.NotNil(t, rest[0].Func)
		require.Zero(t, rest[0].Left)
		require.EqualValues(t, 1, ran.Load())
		require.False(t, timer.Stop())
		pass(time.Hour)
		require.EqualValues(t, 1, ran.Load())
	})
}
