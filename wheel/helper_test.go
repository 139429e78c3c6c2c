package wheel_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// newWheel makes a wheel that is stopped when the test ends.
func newWheel(t testing.TB, opts ...wheel.Option) *wheel.Wheel {
	t.Helper()
	w, err := wheel.New(opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := w.Stop(context.Background())
		require.NoError(t, err)
	})
	return w
}

// after schedules f and fails the test if that is refused.
func after(t testing.TB, w *wheel.Wheel, d time.Duration, f func()) wheel.Timer {
	t.Helper()
	timer, err := w.AfterFunc(d, f)
	require.NoError(t, err)
	return timer
}

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

// pass lets virtual time pass and everything due by then finish.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// executors are the kinds, for tests that must hold for each.
func executors() map[string]wheel.Executor {
	return map[string]wheel.Executor{
		"Inline":             wheel.Inline(),
		"Goroutines":         wheel.Goroutines(),
		"Pool(1)":            wheel.Pool(1),
		"Pool(4)":            wheel.Pool(4),
		"ExecutorFunc(go)":   wheel.ExecutorFunc(func(task func()) { go task() }),
		"ExecutorFunc(call)": wheel.ExecutorFunc(func(task func()) { task() }),
	}
}

// eachExecutor runs a test in virtual time on each kind of executor.
func eachExecutor(t *testing.T, f func(t *testing.T, e wheel.Executor)) {
	t.Helper()
	t.Parallel()
	for name, e := range executors() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { f(t, e) })
		})
	}
}

// task is a TimerTask that counts its runs and cancellations.
type task struct{ ran, cancelled atomic.Int64 }

func (k *task) Run(*wheel.Timeout)       { k.ran.Add(1) }
func (k *task) Cancelled(*wheel.Timeout) { k.cancelled.Add(1) }

// counter counts calls.
type counter struct{ atomic.Int64 }

func (c *counter) inc() { c.Add(1) }
