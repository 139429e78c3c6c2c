package wheel_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestNew_RefusesBadOptionsByNameAndValue(t *testing.T) {
	t.Parallel()
	cases := []struct {
		opts  []wheel.Option
		names string
	}{
		{[]wheel.Option{wheel.WithTickDuration(0)}, "WithTickDuration(0s)"},
		{[]wheel.Option{wheel.WithTickDuration(-time.Second)}, "WithTickDuration(-1s)"},
		{[]wheel.Option{wheel.WithTickDuration(1)}, "WithTickDuration(1ns)"},
		{[]wheel.Option{wheel.WithTickDuration(time.Hour + 1)}, "WithTickDuration(1h0m0.000000001s)"},
		{[]wheel.Option{wheel.WithTicksPerWheel(0)}, "WithTicksPerWheel(0)"},
		{[]wheel.Option{wheel.WithTicksPerWheel(-1)}, "WithTicksPerWheel(-1)"},
		{[]wheel.Option{wheel.WithTicksPerWheel(math.MaxInt32)}, "WithTicksPerWheel(2147483647)"},
		{[]wheel.Option{wheel.WithMaxPendingTimeouts(-1)}, "WithMaxPendingTimeouts(-1)"},
		{[]wheel.Option{wheel.WithExecutor(wheel.Executor{})}, "WithExecutor(unset)"},
		{[]wheel.Option{wheel.WithExecutor(wheel.Pool(0))}, "WithExecutor(Pool(0))"},
		{[]wheel.Option{wheel.WithExecutor(wheel.Pool(-3))}, "WithExecutor(Pool(-3))"},
		{[]wheel.Option{wheel.WithExecutor(wheel.ExecutorFunc(nil))}, "WithExecutor(ExecutorFunc): the function is nil"},
		{[]wheel.Option{wheel.WithClock(nil)}, "WithClock(<nil>)"},
		{[]wheel.Option{wheel.WithLogger(nil)}, "WithLogger"},
		{[]wheel.Option{wheel.WithPanicHandler(nil)}, "WithPanicHandler"},
		{[]wheel.Option{nil}, "Option(#1): is nil"},
		{[]wheel.Option{wheel.WithTicksPerWheel(64), wheel.WithTicksPerWheel(64)}, "WithTicksPerWheel(64): given more than once"},
		{[]wheel.Option{wheel.WithExecutor(wheel.Inline()), wheel.WithExecutor(wheel.Pool(2))}, "WithExecutor(Pool(2)): given more than once"},
	}
	for _, c := range cases {
		w, err := wheel.New(c.opts...)
		require.Nil(t, w)
		require.ErrorIs(t, err, wheel.ErrInvalidOption, c.names)
		var typed *wheel.OptionError
		require.ErrorAs(t, err, &typed)
		require.ErrorContains(t, err, c.names)
	}
}

func TestNew_AcceptsTheWholeRangeOfOptions(t *testing.T) {
	for _, tick := range []time.Duration{time.Microsecond, time.Millisecond, 1234567, time.Hour} {
		for _, buckets := range []int{1, 3, 512, 1000, 65536} {
			t.Run(fmt.Sprintf("%v and %d", tick, buckets), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
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

func TestWheel_RefusesNilFunctionsAndBadPeriods(t *testing.T) {
	t.Parallel()
	w := newWheel(t)
	_, err := w.AfterFunc(time.Second, nil)
	require.ErrorIs(t, err, wheel.ErrNilFunc)
	_, err = w.Every(time.Second, nil)
	require.ErrorIs(t, err, wheel.ErrNilFunc)
	_, err = w.NewTimeout(nil, time.Second)
	require.ErrorIs(t, err, wheel.ErrNilFunc)
	_, err = w.NewTimeout(wheel.TimerTaskFunc(nil), time.Second)
	require.ErrorIs(t, err, wheel.ErrNilFunc)
	for _, period := range []time.Duration{0, -time.Second} {
		_, err = w.Every(period, func() {})
		require.ErrorIs(t, err, wheel.ErrInvalidPeriod)
	}
	require.Panics(t, func() { w.WithTimeout(nil, time.Second) }) //nolint:staticcheck // the nil context is the case
	require.Zero(t, w.Len())
	rest, err := w.Stop(context.Background())
	require.NoError(t, err)
	require.Empty(t, rest)
}
