package wheel_test

import (
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func repeat(t testing.TB, w *wheel.Wheel, pause time.Duration, f func(), opts ...wheel.RepeatOption) wheel.Timer {
	t.Helper()
	timer, err := w.Repeat(pause, f, opts...)
	require.NoError(t, err)
	return timer
}

func TestRepeat_PausesAfterTheEndOfACall(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e))
		start := time.Now()
		var at []time.Duration // f never overlaps itself, so this needs no lock
		timer := repeat(t, w, 10*time.Millisecond, func() {
			at = append(at, time.Since(start))
			time.Sleep(25 * time.Millisecond)
		})
		pass(100 * time.Millisecond)
		require.True(t, timer.Stop())
		pass(time.Second)
		require.Equal(t, []time.Duration{10 * time.Millisecond, 45 * time.Millisecond, 80 * time.Millisecond}, at)
	})
}

func TestRepeat_StopRescheduleAndPanicsAreAsWithEvery(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t, wheel.WithPanicHandler(func(any, []byte) {}))
		start := time.Now()
		var at []time.Duration
		var timer wheel.Timer
		timer = repeat(t, w, 10*time.Second, func() {
			at = append(at, time.Since(start))
			switch len(at) {
			case 2:
				panic("boom")
			case 3:
				require.True(t, timer.Reschedule(time.Second))
			case 4:
				require.True(t, timer.Stop())
			}
		})
		require.True(t, timer.Reschedule(5*time.Second))
		pass(time.Hour)
		require.Equal(t, []time.Duration{5 * time.Second, 15 * time.Second, 25 * time.Second, 26 * time.Second}, at)
		require.False(t, timer.Pending())
	})
}

func TestRepeat_AfterAStallItPausesAsUsual(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t, wheel.WithExecutor(wheel.Inline()))
		start := time.Now()
		var at []time.Duration
		after(t, w, 9*time.Second, func() { time.Sleep(time.Minute) }) // the only goroutine
		repeat(t, w, 10*time.Second, func() { at = append(at, time.Since(start)) })
		pass(90 * time.Second)
		require.Equal(t, []time.Duration{69 * time.Second, 79 * time.Second, 89 * time.Second}, at)
	})
}

// offsets are by how much firings came after the multiples of a period.
type offsets struct {
	mu  sync.Mutex
	all []time.Duration
	on  []int // which multiple
}

func (o *offsets) note(passed, period time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, passed%period)
	o.on = append(o.on, int(passed/period))
}

// requireSpread checks that firings are less than most late, and of every lateness.
func (o *offsets) requireSpread(t *testing.T, most time.Duration) {
	t.Helper()
	require.GreaterOrEqual(t, slices.Min(o.all), time.Duration(0))
	require.Less(t, slices.Max(o.all), most+time.Millisecond)
	for tenth := range 10 {
		from := most * time.Duration(tenth) / 10
		n := 0
		for _, d := range o.all {
			if d >= from && d < from+most/10 {
				n++
			}
		}
		require.InDelta(t, len(o.all)/10, n, float64(len(o.all))/20, "from %v on", from)
	}
}

func TestEvery_JitterDelaysFiringsButNotThePhase(t *testing.T) {
	for _, most := range []time.Duration{10 * time.Second, 59 * time.Second} {
		t.Run(most.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWheel(t)
				start := time.Now()
				var o offsets
				_, err := w.Every(time.Minute, func() { o.note(time.Since(start), time.Minute) }, wheel.WithJitter(most))
				require.NoError(t, err)
				pass(2001*time.Minute - 1)
				require.Len(t, o.all, 2000)
				for k, on := range o.on {
					require.Equal(t, k+1, on, "one firing for each period")
				}
				o.requireSpread(t, most)
			})
		})
	}
}

func TestEvery_RescheduleOfAFiringWithJitterMovesThePhase(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		start := time.Now()
		var at []time.Duration
		timer, err := w.Every(time.Minute, func() { at = append(at, time.Since(start)) }, wheel.WithJitter(time.Second))
		require.NoError(t, err)
		require.True(t, timer.Reschedule(30*time.Second))
		pass(10 * time.Minute)
		require.Len(t, at, 10)
		require.Equal(t, 30*time.Second, at[0])
		for k, d := range at {
			require.GreaterOrEqual(t, d, 30*time.Second+time.Duration(k)*time.Minute)
			require.Less(t, d, 31*time.Second+time.Duration(k)*time.Minute+time.Millisecond)
		}
	})
}

func TestRepeat_JitterIsAddedToThePause(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		ended := time.Now()
		var o offsets
		repeat(t, w, time.Minute, func() {
			o.note(time.Since(ended)-time.Minute, time.Minute)
			time.Sleep(time.Second)
			ended = time.Now()
		}, wheel.WithJitter(30*time.Second))
		pass(40 * time.Hour)
		require.Greater(t, len(o.all), 1500)
		o.requireSpread(t, 30*time.Second)
	})
}

func TestSchedule_JitterDelaysFiringsButNotTheInstants(t *testing.T) {
	for name, next := range map[string]func(time.Time) time.Time{
		"wall clock":      onThe(time.Minute),
		"monotonic clock": func(prev time.Time) time.Time { return prev.Add(time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWheel(t)
				start := time.Now() // midnight
				var o offsets
				_, err := w.Schedule(wheel.ScheduleFunc(next), func(time.Time) { o.note(time.Since(start), time.Minute) }, wheel.WithJitter(20*time.Second))
				require.NoError(t, err)
				pass(2001*time.Minute - 1)
				require.Len(t, o.all, 2000)
				for k, on := range o.on {
					require.Equal(t, k+1, on, "one firing for each instant")
				}
				o.requireSpread(t, 20*time.Second)
			})
		})
	}
}

func TestRepeat_CenturiesAreNotThePast(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		pass(time.Second)
		var ran counter
		jitter := wheel.WithJitter(math.MaxInt64)
		timer := repeat(t, w, math.MaxInt64, ran.inc, jitter)
		_, err := w.Every(math.MaxInt64, func() { t.Error("long before its time") }, jitter)
		require.NoError(t, err)
		require.True(t, timer.Reschedule(time.Second))
		pass(time.Hour)
		require.EqualValues(t, 1, ran.Load())
		require.Equal(t, 2, w.Len())
	})
}

func TestRepeat_RefusesWhatIsWrong(t *testing.T) {
	w := newWheel(t)
	minutely := wheel.ScheduleFunc(onThe(time.Minute))
	for name, call := range map[string]func() (wheel.Timer, error){
		"no pause":                         func() (wheel.Timer, error) { return w.Repeat(0, func() {}) },
		"no function":                      func() (wheel.Timer, error) { return w.Repeat(time.Second, nil) },
		"a nil option":                     func() (wheel.Timer, error) { return w.Repeat(time.Second, func() {}, nil) },
		"no jitter":                        func() (wheel.Timer, error) { return w.Repeat(time.Second, func() {}, wheel.WithJitter(0)) },
		"Every: more jitter than a period": func() (wheel.Timer, error) { return w.Every(time.Second, func() {}, wheel.WithJitter(1e9+1)) },
		"Every: a negative jitter":         func() (wheel.Timer, error) { return w.Every(time.Second, func() {}, wheel.WithJitter(-1)) },
		"Schedule: no jitter":              func() (wheel.Timer, error) { return w.Schedule(minutely, func(time.Time) {}, wheel.WithJitter(0)) },
		"Schedule: a nil option":           func() (wheel.Timer, error) { return w.Schedule(minutely, func(time.Time) {}, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			_, err := call()
			var invalid *cogwheel.InvalidError
			require.ErrorAs(t, err, &invalid)
		})
	}
	require.Zero(t, w.Len())
}
