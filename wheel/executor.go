package wheel

import (
	"math"
	"strconv"
	"sync"
)

// Executor says where callbacks run: Goroutines, Pool, Inline or ExecutorFunc.
type Executor struct {
	name   string
	limit  int                // goroutines of the wheel's own that run callbacks
	caller *func(task func()) // of ExecutorFunc; a pointer keeps Executor comparable
}

// Goroutines lets no callback wait for another, as time.AfterFunc does: a callback that blocks delays none. Callbacks
// that do not block share few goroutines; each that blocks has one to itself, however many there are.
func Goroutines() Executor { return Executor{name: "Goroutines", limit: math.MaxInt} }

// Pool runs at most n callbacks at a time, on n goroutines. While all of them are busy, entries that come due wait
// their turn in the order of their ticks. An entry that waits is pending as any other: it can be stopped and reset, it
// counts in Len, and Stop of the wheel returns it.
func Pool(n int) Executor { return Executor{name: "Pool(" + strconv.Itoa(n) + ")", limit: n} }

// Inline runs callbacks on the wheel's worker, as Netty does by default: one at a time and without a hand-over, but a
// callback that blocks delays every other entry. For callbacks known to be short. Otherwise as Pool(1).
func Inline() Executor { return Executor{name: "Inline", limit: 1} }

// ExecutorFunc lets the caller run the callbacks, on goroutines of its own: a worker pool, an errgroup, an event loop.
// The wheel calls run on its worker, once for each entry that comes due, in the order of ticks. run must not block, as
// nothing fires meanwhile, and must have task called soon. For a pool that can refuse work:
//
//	wheel.ExecutorFunc(func(task func()) {
//		if err := pool.Submit(task); err != nil {
//			go task()
//		}
//	})
//
// An entry fires when its task is called. Until then it is pending as any other: it can be stopped and reset, it counts
// in Len, and Stop of the wheel returns it. A task calls the callback at most once and does nothing when its entry has
// been stopped, reset or returned meanwhile, so it is safe to call late, more than once, from any goroutine, and after
// the wheel's Stop. A panic of the callback does not leave the task: it is reported as with every executor.
//
// A task that is never called leaves its entry pending until that is stopped, reset or returned by the wheel's Stop;
// other entries are not affected. If run calls task itself, the callback runs on the worker, as with Inline. If run panics
// or ends its goroutine, the panic is reported and the task is called on a goroutine of the wheel's own.
//
// Stop of the wheel waits for the callbacks that tasks have begun, not for tasks that were not called.
func ExecutorFunc(run func(task func())) Executor {
	e := Executor{name: "ExecutorFunc", limit: 1}
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

// spareRunners is how many idle runners an executor without a limit keeps.
const spareRunners = 64

// executor is the runners of a wheel, and which of them is the worker; see scheduler.work.
type executor struct {
	limit     int // runners at most
	spare     int // idle runners at most
	batchSize int // entries that a runner takes at once; 1 if it may be the last runner to come by for long

	mu      sync.Mutex
	worker  bool // a runner is the worker, or has been appointed and is on its way
	runners int
	idle    []*runner
	batches []work // those with callbacks that no runner has claimed
	calls   int    // tasks of ExecutorFunc that are running a callback
	halted  bool
	begun   chan struct{} // closed once halted and no batch is left
	gone    chan struct{} // closed once halted and no runner and no call is left
}

func (x *executor) init(e Executor) {
	x.limit, x.spare, x.batchSize = e.limit, e.limit, 1
	if e.limit == math.MaxInt {
		x.spare, x.batchSize = spareRunners, maxBatch
	}
	x.begun, x.gone = make(chan struct{}), make(chan struct{})
}

// startWorker starts a runner as the worker if there is none and the limit allows it; otherwise the first runner to
// return from its callback will be the worker. It returns false if there is a worker, which may be asleep.
func (x *executor) startWorker(c *scheduler) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.worker {
		return false
	}
	if x.runners < x.limit && !x.halted {
		x.startLocked(c)
	}
	return true
}

// startLocked starts a runner, which is the worker.
func (x *executor) startLocked(c *scheduler) {
	x.joinLocked()
	x.worker = true
	go c.work(newRunner(c))
}

// appoint makes another runner the worker, if there may be one more.
func (x *executor) appoint(c *scheduler) {
	x.mu.Lock()
	defer x.mu.Unlock()
	last := len(x.idle) - 1
	switch {
	case last >= 0:
		next := x.idle[last]
		x.idle = x.idle[:last]
		next.worker = true
		next.appointed <- struct{}{}
	case x.runners < x.limit:
		x.startLocked(c)
	default:
		x.worker = false
	}
}

// rest keeps a runner that has nothing to do and is not the worker until it is. It returns false if the runner must
// end instead.
func (x *executor) rest(r *runner) bool {
	x.mu.Lock()
	switch {
	case x.halted || x.worker && len(x.idle) >= x.spare:
		x.leaveLocked(1)
		x.mu.Unlock()
		return false
	case !x.worker:
		x.worker, r.worker = true, true
		x.mu.Unlock()
		return true
	}
	x.idle = append(x.idle, r)
	x.mu.Unlock()
	_, ok := <-r.appointed
	return ok
}

// resign ends the worker, which is not replaced, and all idle runners. It returns false, and ends nothing, while there is
// a batch to help with.
func (x *executor) resign(r *runner) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.batches) > 0 {
		return false
	}
	x.dismissIdleLocked()
	x.worker, r.worker = false, false
	x.leaveLocked(1)
	return true
}

// resume takes a resignation back, unless there is another worker by now.
func (x *executor) resume(r *runner) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.worker || x.halted {
		return false
	}
	x.joinLocked()
	x.worker, r.worker = true, true
	return true
}

func (x *executor) dismissIdleLocked() {
	for _, r := range x.idle {
		close(r.appointed)
	}
	x.leaveLocked(len(x.idle))
	x.idle = nil
}

func (x *executor) joinLocked() {
	if x.runners++; x.runners == 1 {
		running.Add(1)
	}
}

func (x *executor) leaveLocked(runners int) {
	if x.runners -= runners; x.runners == 0 && runners > 0 {
		running.Add(-1)
	}
	x.endLocked()
}

// open lets other runners help with a batch, which the caller will run. Were there no worker just now, none
// would come by: then the caller becomes the worker, and appoints another before it begins.
func (x *executor) open(b work, r *runner) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.worker {
		x.worker, r.worker = true, true
	}
	b.join() // for the caller
	b.join() // for as long as it is open
	b.move(len(x.batches))
	x.batches = append(x.batches, b)
}

// oldest returns a batch to help with, one of those that were opened first, or nil. The caller runs it.
func (x *executor) oldest() work {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.batches) == 0 {
		return nil
	}
	x.batches[0].join()
	return x.batches[0]
}

// hasBatch reports whether there is a batch to help with.
func (x *executor) hasBatch() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.batches) > 0
}

// close ends the help with a batch that has no callback to be claimed any more.
func (x *executor) close(b work) {
	x.mu.Lock()
	defer x.mu.Unlock()
	place := b.move(-1)
	if place < 0 {
		return // another of its runners was quicker
	}
	last := len(x.batches) - 1
	if end := x.batches[last]; end != b {
		end.move(place)
		x.batches[place] = end
	}
	x.batches[last] = nil
	x.batches = x.batches[:last]
	if x.halted && last == 0 {
		close(x.begun)
	}
	b.leave()
}

// enter counts a callback that a task of ExecutorFunc begins.
func (x *executor) enter() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.calls++
}

func (x *executor) leave() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.calls--
	x.endLocked()
}

// halt ends the runners, each when its callback has returned and no batch is left. The shards must be closed.
func (x *executor) halt() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.halted = true
	if len(x.batches) == 0 {
		close(x.begun)
	}
	x.dismissIdleLocked()
}

func (x *executor) endLocked() {
	if x.halted && x.runners == 0 && x.calls == 0 {
		close(x.gone)
	}
}
