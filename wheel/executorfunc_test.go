package wheel_test

// The sentences of ExecutorFunc, one by one.

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// manualExecutor is an executor that keeps the tasks it is given until the test calls them.
type manualExecutor struct {
	mu    sync.Mutex
	tasks []func()
}

func (h *manualExecutor) run(task func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tasks = append(h.tasks, task)
}

func (h *manualExecutor) take() []func() {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.tasks)
}

// newManualWheel makes a wheel with a manualExecutor.
func newManualWheel(t *testing.T) (*wheel.Wheel, *manualExecutor) {
	h := &manualExecutor{}
	return newWheel(t, wheel.WithExecutor(wheel.ExecutorFunc(h.run))), h
}

func TestExecutorFunc_IsCalledOnceForEachEntryInTheOrderOfTicks(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w, h := newManualWheel(t)
		var order []int
		for k := range 1000 {
			after(t, w, time.Second+time.Duration(1000-k)*time.Millisecond, func() { order = append(order, k) })
		}
		pass(1500 * time.Millisecond)
		require.Len(t, h.take(), 500, "one for each that is due")
		pass(time.Minute)
		tasks := h.take()
		require.Len(t, tasks, 1000)
		for _, task := range tasks {
			task()
		}
		require.Len(t, order, 1000)
		require.True(t, slices.IsSortedFunc(order, func(a, b int) int { return b - a }))
	})
}

// Guarantees: W10.
func TestExecutorFunc_AnEntryIsPendingUntilItsTaskIsCalled(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w, h := newManualWheel(t)
		var ran counter
		timers := make([]wheel.Timer, 4)
		for k := range timers {
			timers[k] = after(t, w, time.Second, ran.inc)
		}
		pass(time.Minute)
		tasks := h.take()
		require.Len(t, tasks, 4)
		require.Equal(t, 4, w.Len())
		require.True(t, timers[0].Pending())
		require.True(t, timers[0].Stop())
		require.False(t, timers[0].Stop())
		require.True(t, timers[1].Reschedule(time.Minute))
		require.Equal(t, 3, w.Len())
		require.Zero(t, w.Stats().Fired)
		tasks[0]()
		tasks[1]()
		require.Zero(t, ran.Load(), "one was stopped, one was rescheduled")
		tasks[2]()
		require.EqualValues(t, 1, ran.Load())
		require.False(t, timers[2].Pending())
		require.EqualValues(t, 1, w.Stats().Fired)
		pass(time.Minute)
		require.Len(t, h.take(), 5, "the rescheduled one is due again")
		h.take()[4]()
		require.EqualValues(t, 2, ran.Load())
		rest, err := w.Stop(context.Background())
		require.NoError(t, err, "Stop does not wait for a task that was not called")
		require.Len(t, rest, 1)
		require.Zero(t, rest[0].Left)
		for _, task := range h.take() {
			task()
		}
		require.EqualValues(t, 2, ran.Load(), "a task does nothing after the wheel's Stop")
	})
}

func TestExecutorFunc_ATaskCallsTheCallbackAtMostOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w, h := newManualWheel(t)
		var ran counter
		after(t, w, time.Second, ran.inc)
		pass(time.Second)
		for range 10 {
			go h.take()[0]()
		}
		pass(time.Second)
		require.EqualValues(t, 1, ran.Load())
		var others counter
		for range 1000 { // which use the same memory
			after(t, w, time.Second, others.inc)
			h.take()[0]()
		}
		require.Zero(t, others.Load())
		require.EqualValues(t, 1, ran.Load())
	})
}

// Guarantees: W1.
func TestExecutorFunc_ATaskThatIsDroppedHarmsNoOtherEntry(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var calls int
		w := newWheel(t, wheel.WithExecutor(wheel.ExecutorFunc(func(task func()) {
			if calls++; calls%2 == 0 {
				go task()
			}
		})))
		var late lateness
		start := time.Now()
		for k := range 1000 {
			due := time.Second + time.Duration(k)*100*time.Microsecond
			after(t, w, due, func() { late.add(time.Since(start) - due) })
		}
		pass(time.Minute)
		require.EqualValues(t, 500, late.ran.Load())
		require.LessOrEqual(t, late.worst(), time.Millisecond)
		require.Equal(t, 500, w.Len())
		rest, err := w.Stop(context.Background())
		require.NoError(t, err)
		require.Len(t, rest, 500, "dropped, not lost")
	})
}

func TestExecutorFunc_RecurringEntriesGoOnWhenTheirTaskHasBeenCalled(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w, h := newManualWheel(t)
		var ran counter
		timer := every(t, w, time.Second, ran.inc)
		pass(time.Minute)
		require.Len(t, h.take(), 1, "the next firing waits for this one")
		h.take()[0]()
		require.EqualValues(t, 1, ran.Load())
		pass(time.Second)
		require.Len(t, h.take(), 2)
		h.take()[0]() // the one of the firing before: whichever is called first begins what is due
		h.take()[1]()
		require.EqualValues(t, 2, ran.Load())
		pass(time.Second)
		require.Len(t, h.take(), 3)
		require.True(t, timer.Reschedule(time.Minute), "as if that task were dropped")
		pass(time.Minute)
		require.Len(t, h.take(), 4)
		h.take()[3]()
		require.EqualValues(t, 3, ran.Load())
		require.True(t, timer.Stop())
		require.Zero(t, w.Len())
	})
}

func TestExecutorFunc_APanicOfTheCallbackDoesNotLeaveTheTask(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var reported []any
		h := &manualExecutor{}
		w := newWheel(t, wheel.WithExecutor(wheel.ExecutorFunc(h.run)),
			wheel.WithPanicHandler(func(v any, _ []byte) { reported = append(reported, v) }))
		after(t, w, time.Second, func() { panic("boom") })
		pass(time.Second)
		require.NotPanics(t, h.take()[0])
		require.Equal(t, []any{"boom"}, reported)
		require.EqualValues(t, 1, w.Stats().Panicked)
	})
}

func TestExecutorFunc_ThatFailsLosesAndRepeatsNothing(t *testing.T) {
	fail := map[string]func(){"panics": func() { panic("refused") }, "ends its goroutine": runtime.Goexit}
	for name, fail := range fail {
		for _, when := range []string{"before", "after"} {
			t.Run(name+" "+when+" the task was called", func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					var reported counter
					w := newWheel(t, wheel.WithPanicHandler(func(any, []byte) { reported.inc() }),
						wheel.WithExecutor(wheel.ExecutorFunc(func(task func()) {
							if when == "after" {
								task()
							}
							fail()
						})))
					var ran counter
					for k := range 100 {
						after(t, w, time.Second+time.Duration(k)*time.Microsecond, ran.inc)
					}
					pass(time.Minute)
					require.EqualValues(t, 100, ran.Load())
					require.Zero(t, w.Len())
					if name == "panics" {
						require.EqualValues(t, 100, reported.Load())
					} else {
						require.Zero(t, reported.Load())
					}
				})
			})
		}
	}
}

func TestExecutorFunc_ThatBlocksHoldsUpTheWheel(t *testing.T) {
	inBubble(t, func(t *testing.T) { // the documented reason why it must not
		w := newWheel(t, wheel.WithExecutor(wheel.ExecutorFunc(func(task func()) {
			time.Sleep(time.Second)
			go task()
		})))
		start := time.Now()
		var at []time.Duration
		for range 3 {
			after(t, w, time.Second, func() { at = append(at, time.Since(start)) })
		}
		pass(time.Minute)
		require.Equal(t, []time.Duration{2 * time.Second, 3 * time.Second, 4 * time.Second}, at)
	})
}

func TestExecutorFunc_StopWaitsForCallbacksThatTasksHaveBegun(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w, h := newManualWheel(t)
		var ended counter
		for range 10 {
			after(t, w, time.Second, func() { time.Sleep(time.Minute); ended.inc() })
		}
		pass(time.Second)
		for _, task := range h.take()[:3] {
			go task()
		}
		pass(time.Second)
		start := time.Now()
		rest, err := w.Stop(context.Background())
		require.NoError(t, err)
		require.Equal(t, 59*time.Second, time.Since(start))
		require.Len(t, rest, 7)
		require.EqualValues(t, 3, ended.Load())
	})
}
