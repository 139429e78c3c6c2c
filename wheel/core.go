package wheel

import (
	"context"
	"log/slog"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const maxShards = 64

// expirer is a shard as the worker sees it, whatever its values are.
type expirer interface {
	base() *shard
	expire(now int64, due []uint32) (more bool)
}

// core is what all lanes of a wheel share: the time, the limit, the executor and the worker. It does not know
// the Wheel or Typed in front of it.
type core struct {
	tick      time.Duration
	buckets   int
	shardBits uint
	time      timeSource
	exec      *executor
	onPanic   func(v any, stack []byte)
	logger    *slog.Logger
	panics    atomic.Int64
	tasks     tasks

	limit    int64 // 0: none
	reserved atomic.Int64

	mu     sync.Mutex // guards the writing of shards
	shards atomic.Pointer[[]expirer]

	handover sync.Mutex // held while due entries pass from a shard to the executor
	stopped  atomic.Bool
	stop     chan struct{} // tells the worker to end
	done     chan struct{} // closed when it has, or will never start
	started  atomic.Bool
	workerID atomic.Int64
	wakeups  atomic.Int64
	retired  atomic.Int64

	wakeAt atomic.Int64 // the worker sleeps until then; awake while it does not
	wake   chan struct{}
	_      [64]byte
}

// awake is the wakeAt of a worker that is about to look at every shard anyway.
const awake = -1

func newCore(cfg *config) *core {
	c := &core{
		tick:      cfg.tick,
		buckets:   cfg.buckets,
		shardBits: uint(bits.Len(uint(min(runtime.GOMAXPROCS(0), maxShards) - 1))),
		time:      newTimeSource(cfg.clock),
		exec:      newExecutor(cfg.executor),
		onPanic:   cfg.onPanic,
		logger:    cfg.logger,
		limit:     cfg.maxPending,
		stop:      make(chan struct{}),
		done:      make(chan struct{}),
		wake:      make(chan struct{}, 1),
	}
	c.shards.Store(new([]expirer))
	c.wakeAt.Store(never)
	return c
}

// attach adds a lane's shards to those the worker looks after.
func (c *core) attach(lane []expirer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := append(append([]expirer(nil), *c.shards.Load()...), lane...)
	c.shards.Store(&all)
}

// reserve counts one entry towards the limit; false means that it is reached.
func (c *core) reserve() bool {
	if c.limit == 0 {
		return true
	}
	if c.reserved.Add(1) > c.limit {
		c.reserved.Add(-1)
		return false
	}
	return true
}

func (c *core) unreserve(n int64) {
	if c.limit > 0 {
		c.reserved.Add(-n)
	}
}

func (c *core) reportPanic(v any, stack []byte) {
	c.panics.Add(1)
	c.onPanic(v, stack)
}

func (c *core) len() int {
	n := 0
	for _, e := range *c.shards.Load() {
		s := e.base()
		s.mu.Lock()
		n += s.ring.live
		s.mu.Unlock()
	}
	return n
}

// kick wakes the worker, or starts it, if it would sleep beyond at.
func (c *core) kick(at int64) {
	for {
		until := c.wakeAt.Load()
		if at >= until {
			return
		}
		if c.wakeAt.CompareAndSwap(until, at) {
			break
		}
	}
	if !c.started.Load() && c.started.CompareAndSwap(false, true) {
		c.warnOfMany(running.Add(1))
		go c.work()
		return
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// manyWheels is how many wheels may be at work in a process before a warning is logged, once, as Netty does: each
// has its own goroutines and wakes on its own, while one wheel serves any number of users.
const manyWheels = 64

var (
	running atomic.Int64 // workers in this process
	warned  atomic.Bool
)

func (c *core) warnOfMany(wheels int64) {
	if wheels > manyWheels && warned.CompareAndSwap(false, true) {
		c.logger.Warn("wheel: many wheels are at work; share one, such as wheel.Default()", "wheels", wheels)
	}
}

// shutdown ends the wheel: closeLanes empties the shards, steal receives each batch that may hold callbacks
// nobody has begun. It returns once the worker and every running callback have ended, or with ctx's error.
// From its return on no callback begins.
func (c *core) shutdown(ctx context.Context, closeLanes func(now int64), steal func(work)) error {
	if id := goroutineID(); id == c.workerID.Load() || c.exec.owns(id) {
		return ErrStopFromTask
	}
	if !c.stopped.CompareAndSwap(false, true) {
		return nil
	}
	closeLanes(c.time.now())
	c.handover.Lock() // what had left the shards has now reached the executor, and nothing follows
	c.exec.halt(steal)
	c.handover.Unlock()
	close(c.stop)
	if c.started.CompareAndSwap(false, true) {
		close(c.done)
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	return c.exec.wait(ctx)
}
