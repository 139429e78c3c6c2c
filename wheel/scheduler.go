package wheel

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/bits"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const maxShards = 64

// firer is a shard with values of any type, as runners use it.
type firer interface {
	base() *shard
	fire(r *runner, limit int64)
	callWaiting(i, gen uint32)
}

// scheduler is the part that all shard sets of a wheel share: the time, the limit, and the runners. It does not
// know the Wheel or Typed in front of it.
type scheduler struct {
	ticks
	slots     int
	shardBits uint
	time      timeSource
	onPanic   func(v any, stack []byte)
	logger    *slog.Logger
	caller    func(task func()) // of ExecutorFunc, or nil
	stop      chan struct{}     // closed to end the worker
	wake      chan struct{}     // receives to make the worker look again
	limit     int64             // of the entries that count towards it; 0: none

	_         [64]byte // fields that are written often lie on other cache lines than fields that every call reads
	reserved  atomic.Int64
	mu        sync.Mutex // guards the writing of shards
	shards    atomic.Pointer[[]firer]
	runners   runnerPool
	stopped   atomic.Bool
	rescanned int64 // when the running tick was scanned last; the worker's

	durations                durations
	panics, wakeups, retired atomic.Int64

	_      [64]byte
	wakeAt atomic.Int64 // the worker sleeps until then; awake while it does not
	dozing atomic.Bool  // the worker sleeps for longer than idleTimeout
	roused atomic.Bool  // an entry that left a shard empty has woken the worker
	_      [64]byte
}

// awake is the value of wakeAt while a runner is about to look at every shard.
const awake = -1

func newScheduler(cfg *config) *scheduler {
	c := &scheduler{
		ticks:     newTicks(cfg.tick),
		slots:     cfg.buckets,
		shardBits: uint(bits.Len(uint(min(runtime.GOMAXPROCS(0), maxShards) - 1))),
		time:      newTimeSource(cfg.clock),
		onPanic:   cfg.onPanic,
		logger:    cfg.logger,
		limit:     cfg.maxPending,
		stop:      make(chan struct{}),
		wake:      make(chan struct{}, 1),
	}
	c.durations.blocking = int64(min(max(cfg.tick, time.Millisecond), 10*time.Millisecond))
	c.runners.init(cfg.executor)
	if cfg.executor.caller != nil {
		c.caller = *cfg.executor.caller
	}
	c.shards.Store(new([]firer))
	c.wakeAt.Store(never)
	return c
}

// attach adds the shards of a set to those of the worker.
func (c *scheduler) attach(set []firer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Concat(*c.shards.Load(), set)
	c.shards.Store(&all)
}

// reserve counts an entry towards the limit. It returns false if the limit is reached.
func (c *scheduler) reserve() bool {
	if c.reserved.Add(1) > c.limit {
		c.reserved.Add(-1)
		return false
	}
	return true
}

func (c *scheduler) unreserve() { c.reserved.Add(-1) }

// recovered reports the panic, if any, of the function that deferred it.
func (c *scheduler) recovered() {
	if v := recover(); v != nil {
		c.panics.Add(1)
		c.onPanic(v, debug.Stack())
	}
}

func (c *scheduler) len() int {
	n := 0
	for _, e := range *c.shards.Load() {
		s := e.base()
		s.mu.Lock()
		n += s.ring.live
		s.mu.Unlock()
	}
	return n
}

// next returns a lower bound of the instant at which a shard has work.
func (c *scheduler) next() int64 {
	next := int64(never)
	for _, e := range *c.shards.Load() {
		next = min(next, e.base().next.Load())
	}
	return next
}

// wakeWorker wakes the worker, or starts one, if it would sleep beyond at.
func (c *scheduler) wakeWorker(at int64) {
	for {
		until := c.wakeAt.Load()
		if at >= until {
			return
		}
		if c.wakeAt.CompareAndSwap(until, at) {
			break
		}
	}
	if c.runners.startWorker(c) {
		c.warnOfMany()
		return
	}
	c.wakeNow()
}

func (c *scheduler) wakeNow() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// manyWheels is the number of running wheels in a process above which a warning is logged, once, as Netty does:
// each has goroutines and wake-ups, while one wheel serves any number of users.
const manyWheels = 64

var (
	running atomic.Int64 // wheels in this process that have goroutines
	warned  atomic.Bool
)

func (c *scheduler) warnOfMany() {
	if wheels := running.Load(); wheels > manyWheels && warned.CompareAndSwap(false, true) {
		c.logger.Warn("wheel: many wheels are at work; share one, such as wheel.Default()", "wheels", wheels)
	}
}

// submit gives a due entry to the caller's executor.
func (c *scheduler) submit(s firer, i, gen uint32) {
	task := func() { c.task(s, i, gen) }
	accepted := false
	defer func() {
		if !accepted { // run panicked or called runtime.Goexit
			go task()
		}
	}()
	defer c.recovered()
	c.caller(task)
	accepted = true
}

// task is what the caller's executor calls.
//
//go:noinline // inCallback looks for it
func (c *scheduler) task(s firer, i, gen uint32) {
	defer c.recovered()
	s.callWaiting(i, gen)
	runtime.KeepAlive(c)
}

// shutdown ends the wheel: closeShards empties the shards, and callbacks taken before still begin. It returns
// when every callback that has begun has returned, or with ctx's error.
func (c *scheduler) shutdown(ctx context.Context, closeShards func(now int64)) error {
	if ctx == nil {
		return errNilContext
	}
	if c.inCallback() {
		return ErrStopFromTask
	}
	if !c.stopped.CompareAndSwap(false, true) {
		return nil
	}
	closeShards(c.time.now())
	c.runners.halt()
	close(c.stop)
	if c.caller == nil {
		<-c.runners.begun // soon: in a batch no callback waits for another
	}
	select {
	case <-c.runners.ended:
		return nil
	default:
	}
	select {
	case <-c.runners.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// inCallback reports whether the calling goroutine runs a callback of this wheel. Then its stack trace has work
// or task with this scheduler as the first argument, which both keep alive so that the trace shows it. Only
// Stop needs to know. If each goroutine that runs callbacks recorded its number beforehand, its start would take
// 1.5 µs instead of 0.3 µs, and each callback on a goroutine of the caller 1.2 µs more; the number is in the text
// of a trace as well. runtime.Callers returns no arguments, so it does not tell one wheel from another.
func (c *scheduler) inCallback() bool {
	trace := make([]byte, 2<<10)
	for {
		if n := runtime.Stack(trace, false); n < len(trace) {
			trace = trace[:n]
			break
		}
		trace = make([]byte, 4*len(trace))
	}
	for _, method := range []string{"work", "task"} {
		if bytes.Contains(trace, fmt.Appendf(nil, ".(*scheduler).%s(%p, ", method, c)) {
			return true
		}
	}
	return false
}
