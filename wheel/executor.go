package wheel

import (
	"math"
	"strconv"
)

// Executor determines where callbacks run: Goroutines, Pool, Inline or ExecutorFunc. WithExecutor refuses the
// zero Executor.
type Executor struct {
	name   string
	limit  int                // maximum number of the wheel's goroutines that run callbacks
	caller *func(task func()) // of ExecutorFunc; a pointer keeps Executor comparable
}

// Goroutines runs callbacks so that none waits for another, as time.AfterFunc does: a callback that blocks
// delays no other. Callbacks that do not block share a few goroutines. Each callback that blocks occupies one
// goroutine, without a limit.
func Goroutines() Executor { return Executor{name: "Goroutines", limit: math.MaxInt} }

// Pool runs at most n callbacks at a time, on n goroutines; WithExecutor refuses an n below 1. While all of
// them are busy, due entries wait for their turn, in the order of their ticks. A waiting entry is still
// pending: it can be stopped and rescheduled, it counts in Len, and Stop of the wheel returns it.
func Pool(n int) Executor { return Executor{name: "Pool(" + strconv.Itoa(n) + ")", limit: n} }

// Inline runs callbacks on the wheel's worker, as Netty does by default: one at a time, without a switch of
// goroutines, but a callback that blocks delays every other entry. Use it only for short callbacks. A waiting
// entry is still pending, as with Pool.
func Inline() Executor { return Executor{name: "Inline", limit: 1} }

// ExecutorFunc runs callbacks on goroutines of the caller: a worker pool, an errgroup, an event loop. The wheel
// calls run on its worker, once each time an entry is due, in the order of ticks. run must not block, because
// nothing fires meanwhile, and must make another goroutine call task soon. WithExecutor refuses a nil run. For
// a pool that can refuse work:
//
//	wheel.ExecutorFunc(func(task func()) {
//		if err := pool.Submit(task); err != nil {
//			go task()
//		}
//	})
//
// A due entry fires when one of its tasks is called. Until then it is still pending: it can be stopped and
// rescheduled, it counts in Len, and Stop of the wheel returns it. A task does nothing unless its entry is due
// and waiting, so it is safe to call late, more than once, from any goroutine, and after the wheel's Stop. A
// panic of the callback does not leave the task: it is reported as with every executor.
//
// If a task is never called, its entry stays pending until it is stopped, rescheduled or returned by the
// wheel's Stop; other entries are not affected. If run itself calls task, the callback runs on the worker, as
// with Inline. If run panics or ends its goroutine, the panic is reported and the wheel calls the task on
// another goroutine.
//
// Stop of the wheel waits for callbacks that tasks have begun, not for tasks that were not called.
func ExecutorFunc(run func(task func())) Executor {
	e := Executor{name: "ExecutorFunc", limit: 1} // for the worker, which calls run
	if run != nil {
		e.caller = &run
	}
	return e
}

// String returns the name of the executor, for logs.
func (e Executor) String() string {
	if e.name == "" {
		return "unset"
	}
	return e.name
}

// refusal returns why a wheel cannot use the executor, or "".
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
