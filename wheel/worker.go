package wheel

import (
	"runtime"
	"time"
)

const (
	// idleTimeout is how long an empty wheel keeps its goroutines, so that light use does not restart them each
	// time.
	idleTimeout = 100 * time.Millisecond

	// rescanThreshold is the age of the last scan of the running tick from which on the worker scans it again
	// before it sleeps: more entries are due by then, and a sleep of less than 1 ms takes about 1.1 ms in an
	// idle process.
	rescanThreshold = int64(200 * time.Microsecond)
)

// work is the main loop of a runner, one of the wheel's goroutines.
//
// One runner at a time is the worker. It sleeps until the next event of any shard, takes due entries and calls
// the first callback. Because the callback may block, it first makes another runner the worker. The new worker
// begins with callbacks that were taken and have not begun. So no due entry waits for a callback while the
// executor allows one more runner, and callbacks that do not block are called one after another, most of them
// by the same runner. When nothing is due, a runner that is not the worker is parked until it is appointed. If
// no more runners are allowed, there is no worker until one of them returns from its callback; nothing could be
// called meanwhile.
//
// When the wheel has been empty for a while, all runners end, and the next entry starts one: a wheel that is
// idle or forgotten costs nothing.
func (c *scheduler) work(r *runner) {
	ended := false
	defer func() {
		if !ended { // a callback has called runtime.Goexit
			go c.work(r)
		}
	}()
	for again := true; again; {
		for !c.runDue(r) {
		}
		if r.worker {
			again = c.sleep(r)
		} else {
			again = c.runners.park(r)
		}
	}
	ended = true
	runtime.KeepAlive(c) // for inCallback
}

// runDue runs due entries until there are none. It returns false if a callback has panicked.
func (c *scheduler) runDue(r *runner) (finished bool) {
	defer func() {
		if r.calling { // a panic or runtime.Goexit
			r.afterCall()
		}
	}()
	defer c.recovered()
	for {
		if c.help(r) { // taken entries come before entries that are due later
			continue
		}
		now, next := r.readClock(), c.next()
		switch {
		case next <= now: // one tick after the other, through all shards
			limit := min(now, c.lastOf(c.tickOf(next)))
			c.fire(r, limit, limit)
		case r.worker && next-now <= int64(c.length) && now-c.rescanned >= rescanThreshold:
			c.rescanned = now
			c.fire(r, now, now+int64(c.length))
		default:
			return true
		}
	}
}

// fire runs the entries due by limit, in every shard whose next event is before horizon.
func (c *scheduler) fire(r *runner, limit, horizon int64) {
	for _, s := range *c.shards.Load() {
		if s.base().next.Load() <= horizon {
			s.fire(r, limit)
		}
	}
}

// help runs callbacks of a batch that another runner has taken. It returns false if there is no batch.
func (c *scheduler) help(r *runner) bool {
	b := c.runners.batch()
	if b == nil {
		return false
	}
	b.run(r)
	return true
}

// sleep parks the worker until the next event of a shard or until a producer schedules an earlier one. It
// returns false if the runner must end: the wheel was stopped, or has been empty for long.
func (c *scheduler) sleep(r *runner) bool {
	next := c.next()
	c.wakeAt.Store(next)
	// Another runner opens a batch before it raises next: if the next read above is the raised one, the batch
	// shows here.
	if c.next() < next || c.runners.hasBatch() {
		c.wakeAt.Store(awake)
		return true
	}
	var timeUp <-chan time.Time
	idle, restless := c.idle(next)
	if idle || restless {
		timeUp = c.time.after(idleTimeout)
	} else if timeUp = c.time.until(next); timeUp == nil {
		c.wakeAt.Store(awake)
		return true
	}
	select {
	case <-timeUp:
		if idle && c.retire(r) {
			return false
		}
	case <-c.wake:
	case <-c.stop:
		c.time.stopTimer()
		return !c.runners.resign(r)
	}
	c.wakeups.Add(1)
	c.wakeAt.Store(awake)
	return true
}

// idle reports whether the worker has nothing to wait for: next may be the deadline of a stopped entry. If not, the
// entry that leaves a shard empty wakes the worker, which then looks again. A worker that was woken so, and finds
// entries, is restless: it looks again by itself after idleTimeout, and is not woken so until then.
func (c *scheduler) idle(next int64) (idle, restless bool) {
	if next == never {
		return true, false
	}
	if next-c.time.now() <= int64(idleTimeout) {
		return false, false
	}
	c.dozing.Store(true)
	idle = c.len() == 0
	restless = c.roused.Swap(false) && !idle
	if idle || restless {
		c.dozing.Store(false)
	}
	return idle, restless
}

// rouse wakes a worker that sleeps for long.
func (c *scheduler) rouse() {
	if c.dozing.CompareAndSwap(true, false) {
		c.roused.Store(true)
		c.wakeNow()
	}
}

// retire ends the runners of an empty wheel and leaves wakeAt at never: from then on a new entry finds no
// worker and starts one. It returns false if an entry came too early to see that.
func (c *scheduler) retire(r *runner) bool {
	c.time.stopTimer()
	c.retired.Add(1)
	for _, s := range *c.shards.Load() {
		s.base().forgetStopped()
	}
	if !c.runners.resign(r) {
		return false
	}
	c.wakeAt.Store(never) // it may have been lowered for an entry that another runner has taken
	return c.next() == never || !c.runners.resume(r)
}
