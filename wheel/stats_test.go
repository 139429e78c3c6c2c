package wheel_test

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestStats_LongestTaskAndBlockedTimeShowCallbacksThatBlock(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e), wheel.WithPanicHandler(func(any, []byte) {}))
		for range 100 {
			after(t, w, time.Second, func() {})
		}
		pass(time.Second + 100*time.Millisecond)
		require.Zero(t, w.Stats().LongestTask)
		require.Zero(t, w.Stats().BlockedTime)

		after(t, w, time.Second, func() { time.Sleep(500 * time.Microsecond) })
		pass(2 * time.Second)
		require.Equal(t, 500*time.Microsecond, w.Stats().LongestTask)
		require.Zero(t, w.Stats().BlockedTime, "below a tick")

		after(t, w, time.Second, func() { time.Sleep(3 * time.Second) })
		after(t, w, 6*time.Second, func() { time.Sleep(2 * time.Second); panic("counts as well") })
		after(t, w, 10*time.Second, func() { time.Sleep(time.Second); runtime.Goexit() })
		pass(time.Minute)
		require.Equal(t, 3*time.Second, w.Stats().LongestTask)
		require.Equal(t, 6*time.Second, w.Stats().BlockedTime)
	})
}

func TestWheel_WarnsOnceWhenTooManyAreAtWork(t *testing.T) {
	// Not parallel: the number of wheels is the process's.
	var out bytes.Buffer
	logged := func() int { return strings.Count(out.String(), "many wheels") }
	base := int(wheel.WarnAgain())
	var wheels []*wheel.Wheel
	for range 70 {
		w := newWheel(t, wheel.WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
		wheels = append(wheels, w)
		if len(wheels)+base <= 64 {
			require.Zero(t, logged())
		}
		for range 10 {
			after(t, w, time.Hour, func() {})
		}
	}
	require.Equal(t, 1, logged())
	for _, w := range wheels {
		_, err := w.Stop(context.Background())
		require.NoError(t, err)
	}
	require.EqualValues(t, base, wheel.WarnAgain(), "stopped wheels do not count")
}

// Guarantees: W15.
func TestGoroutines_CallbacksThatDoNotBlockShareFewGoroutines(t *testing.T) {
	// Not parallel: it counts the goroutines of the process.
	w := newWheel(t, wheel.WithExecutor(wheel.Goroutines()))
	before := runtime.NumGoroutine()
	const n = 10_000
	done, most := make(chan struct{}, n), 0
	for range n {
		after(t, w, time.Millisecond, func() { done <- struct{}{} })
	}
	for range n {
		<-done
		most = max(most, runtime.NumGoroutine()-before)
	}
	require.Less(t, most, n/10)
}
