package wheel_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Guarantees: A1.
func TestNew_RefusesBadOptionsByNameAndValue(t *testing.T) {
	t.Parallel()
	cases := []struct {
		opt wheel.Option
		err string
	}{
		{wheel.WithTickDuration(0), "wheel: WithTickDuration 0s: must be 1µs to 1h"},
		{wheel.WithTickDuration(-time.Second), "wheel: WithTickDuration -1s: must be 1µs to 1h"},
		{wheel.WithTickDuration(1), "wheel: WithTickDuration 1ns: must be 1µs to 1h"},
		{wheel.WithTickDuration(time.Hour + 1), "wheel: WithTickDuration 1h0m0.000000001s: must be 1µs to 1h"},
		{wheel.WithTicksPerWheel(0), "wheel: WithTicksPerWheel 0: must be 1 to 65536"},
		{wheel.WithTicksPerWheel(-1), "wheel: WithTicksPerWheel -1: must be 1 to 65536"},
		{wheel.WithTicksPerWheel(math.MaxInt32), "wheel: WithTicksPerWheel 2147483647: must be 1 to 65536"},
		{wheel.WithMaxPendingTimeouts(-1), "wheel: WithMaxPendingTimeouts -1: must not be negative"},
		{wheel.WithExecutor(wheel.Executor{}), "wheel: WithExecutor unset: must be Goroutines, Pool, Inline or ExecutorFunc"},
		{wheel.WithExecutor(wheel.Pool(0)), "wheel: WithExecutor Pool(0): must have at least one goroutine"},
		{wheel.WithExecutor(wheel.Pool(-3)), "wheel: WithExecutor Pool(-3): must have at least one goroutine"},
		{wheel.WithExecutor(wheel.ExecutorFunc(nil)), "wheel: WithExecutor ExecutorFunc: its function must not be nil"},
		{wheel.WithClock(nil), "wheel: WithClock nil: must not be nil"},
		{wheel.WithLogger(nil), "wheel: WithLogger nil: must not be nil"},
		{wheel.WithPanicHandler(nil), "wheel: WithPanicHandler nil: must not be nil"},
		{nil, "wheel: option 1: is nil"},
	}
	for _, c := range cases {
		w, err := wheel.New(wheel.WithTicksPerWheel(64), c.opt)
		require.Nil(t, w)
		requireInvalid(t, err)
		require.EqualError(t, err, c.err)
		_, err = wheel.NewTyped(func(int) {}, wheel.WithTicksPerWheel(64), c.opt)
		require.EqualError(t, err, c.err)
	}
}

// requireInvalid checks that err says which argument of this package was refused.
func requireInvalid(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, cogwheel.ErrInvalid)
	var refused *cogwheel.InvalidError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "wheel", refused.Package)
	require.NotEmpty(t, refused.Field)
	require.NotContains(t, err.Error(), "\n")
}

// Guarantees: A1.
func TestNew_OfAnOptionGivenTwiceTheLastCounts(t *testing.T) {
	t.Parallel()
	var first, last, called counter
	w := newWheel(t,
		wheel.WithTickDuration(time.Second), wheel.WithTickDuration(2*time.Millisecond),
		wheel.WithMaxPendingTimeouts(1), wheel.WithMaxPendingTimeouts(0),
		wheel.WithPanicHandler(func(any, []byte) { first.inc() }),
		wheel.WithPanicHandler(func(any, []byte) { last.inc() }),
		wheel.WithExecutor(wheel.Pool(1)), wheel.WithExecutor(wheel.ExecutorFunc(func(task func()) { called.inc(); task() })))
	require.Equal(t, 2*time.Millisecond, w.TickDuration())
	ran := make(chan struct{})
	for range 3 {
		after(t, w, 0, func() { ran <- struct{}{}; panic("boom") })
	}
	for range 3 {
		<-ran
	}
	_, err := w.Stop(context.Background())
	require.NoError(t, err)
	require.Zero(t, first.Load())
	require.EqualValues(t, 3, last.Load())
	require.EqualValues(t, 3, called.Load())
}

func TestNew_AcceptsTheWholeRangeOfOptions(t *testing.T) {
	for _, tick := range []time.Duration{time.Microsecond, time.Millisecond, 1234567, time.Hour} {
		for _, buckets := range []int{1, 3, 512, 1000, 65536} {
			t.Run(fmt.Sprintf("%v and %d", tick, buckets), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					w := newWheel(t, wheel.WithTickDuration(tick), wheel.WithTicksPerWheel(buckets), wheel.WithMaxPendingTimeouts(100))
					var ran counter
					for _, d := range []time.Duration{0, tick - 1, tick, 1000 * tick, 24 * time.Hour} {
						after(t, w, d, ran.inc)
					}
					pass(1001*tick + 25*time.Hour)
					require.EqualValues(t, 5, ran.Load())
				})
			})
		}
	}
}

// Guarantees: A1.
func TestWheel_RefusesNilArgumentsAndBadPeriods(t *testing.T) {
	t.Parallel()
	w := newWheel(t)
	typed, err := wheel.NewTyped(func(int) {})
	require.NoError(t, err)
	function, at := func() {}, func(time.Time) {}
	schedule := wheel.ScheduleFunc(func(prev time.Time) time.Time { return prev.Add(time.Second) })
	var none context.Context
	refusals := map[string]func() error{
		"wheel: function nil: must not be nil": func() error { _, err := w.AfterFunc(time.Second, nil); return err },
		"wheel: schedule nil: must not be nil": func() error { _, err := w.Schedule(nil, at); return err },
		"wheel: task nil: must not be nil":     func() error { _, err := w.NewTimeout(nil, time.Second); return err },
		"wheel: context nil: must not be nil":  func() error { return w.Sleep(none, 0) },
		"wheel: period 0s: must be positive":   func() error { _, err := w.Every(0, function); return err },
		"wheel: period -1s: must be positive":  func() error { _, err := w.Every(-time.Second, function); return err },
	}
	for message, call := range refusals {
		err := call()
		requireInvalid(t, err)
		require.EqualError(t, err, message)
	}
	others := map[string]func() error{
		"Every":           func() error { _, err := w.Every(time.Second, nil); return err },
		"Schedule":        func() error { _, err := w.Schedule(schedule, nil); return err },
		"a nil function":  func() error { _, err := w.Schedule(wheel.ScheduleFunc(nil), at); return err },
		"NewTimeout":      func() error { _, err := w.NewTimeout(wheel.TimerTaskFunc(nil), time.Second); return err },
		"NewTyped":        func() error { _, err := wheel.NewTyped[int](nil); return err },
		"Stop":            func() error { _, err := w.Stop(none); return err },
		"Stop of a Typed": func() error { _, err := typed.Stop(none); return err },
		"WithTimeout panics": func() (err error) {
			defer func() { err, _ = recover().(error) }()
			w.WithTimeout(none, time.Second)
			return nil
		},
	}
	for name, call := range others {
		t.Run(name, func(t *testing.T) { requireInvalid(t, call()) })
	}
	require.Zero(t, w.Len())
	after(t, w, time.Hour, function) // the wheel was not stopped
	_, err = typed.Add(1, time.Hour)
	require.NoError(t, err)
	rest, err := w.Stop(context.Background())
	require.NoError(t, err)
	require.Len(t, rest, 1)
	values, err := typed.Stop(context.Background())
	require.NoError(t, err)
	require.Len(t, values, 1)
}
