package wheel

import (
	"math"
	"strconv"
)

// Executor says where callbacks run: Goroutines, Pool, Inline or ExecutorFunc. WithExecutor refuses the zero
// Executor.
type Executor struct {
	name   string
	limit  int                // of goroutines of the wheel's own that run callbacks
	caller *func(task func()) // of ExecutorFunc; a pointer keeps Executor comparable
}

// Goroutines lets no callback wait for another, as time.AfterFunc does: a callback that blocks delays none.
// Callbacks that do not block share few goroutines; each that blocks has one to itself, however many there
// are.
func Goroutines() Executor { return Executor{name: "Goroutines", limit: math.MaxInt} }

// Pool runs at most n callbacks at a time, on n goroutines; WithExecutor refuses an n below 1. While all of
// them are busy, entries that come due wait their turn in the order of their ticks. A waiting entry is
// pending as any other: it can be stopped and rescheduled, it counts in Len, and Stop of the wheel returns
// it.
func Pool(n int) Executor { return Executor{name: "Pool(" + strconv.Itoa(n) + ")", limit: n} }

// Inline runs callbacks on the wheel's worker, as Netty does by default: one at a time and without a
// hand-over, but a callback that blocks delays every other entry. It is for callbacks known to be short.
// Waiting entries are pending, as with Pool.
func Inline() Executor { return Executor{name: "Inline", limit: 1} }

// ExecutorFunc lets the caller run the callbacks, on goroutines of its own: a worker pool, an errgroup, an
// event loop. The wheel calls run on its worker, once each time an entry comes due, in the order of ticks.
// run must not block, as nothing fires meanwhile, and must have task called soon. WithExecutor refuses a nil
// run. For a pool that can refuse work:
//
//	wheel.ExecutorFunc(func(task func()) {
//		if err := pool.Submit(task); err != nil {
//			go task()
//		}
//	})
//
// An entry that has come due fires when one of its tasks is called. Until then it is pending as any other: it
// can be stopped and rescheduled, it counts in Len, and Stop of the wheel returns it. A task does nothing if
// its entry is not due and waiting, so it is safe to call late, more than once, from any goroutine, and after
// the wheel's Stop. A panic of the callback does not leave the task: it is reported as with every executor.
//
// A task that is never called leaves its entry pending until that is stopped, rescheduled or returned by the
// wheel's Stop; other entries are not affected. If run calls task itself, the callback runs on the worker, as
// with Inline. If run panics or ends its goroutine, the panic is reported and the task is called on a
// goroutine of the wheel's own.
//
// Stop of the wheel waits for the callbacks that tasks have begun, not for tasks that were not called.
func ExecutorFunc(run func(task func())) Executor {
	e := Executor{name: "ExecutorFunc", limit: 1} // of the worker, which calls run
	if run != nil {
		e.caller = &run
	}
	return e
}

// String names the executor, for logs.
func (e Executor) String() string {
	if e.name == "" {
		return "unset"
	}
	return e.name
}

// refusal says why a wheel cannot use the executor; empty if it can.
func (e Executor) refusal() string {
	switch {
	case e.name == "":
		return "must be Goroutines, Pool, Inline or ExecutorFunc"
	case e.limit < 1:
		return "must have at least one goroutine"
	case e.name == "ExecutorFunc" && e.caller == nil:
		return "its function must not be nil"
	}
	return ""
}
