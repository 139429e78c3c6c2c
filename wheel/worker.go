package wheel

import (
	"runtime"
	"time"
)

const (
	// idleTimeout is how long an empty wheel keeps its goroutines, so that light use does not restart them
	// each time.
	idleTimeout = 100 * time.Millisecond

	// rescanThreshold is the age of the last scan of the running tick from which on the worker scans it again
	// before it goes to sleep: more has come due meanwhile, and a sleep of less than 1 ms takes about 1.1 ms
	// in an idle process.
	rescanThreshold = int64(200 * time.Microsecond)
)

// work is what each of the wheel's goroutines, its runners, does until it ends.
//
// One runner at a time is the worker. It sleeps until the next event of any shard, takes what is due and
// calls the first callback. As the callback may block, it first makes another runner the worker. The new
// worker begins by looking for callbacks that have not begun. So nothing that is due waits for a callback
// while the executor allows one more runner, and callbacks that do not block are called one after another,
// most of them by the same runner. When nothing is due, a runner that is not the worker is parked until it is
// appointed. Where no more runners are allowed, there is no worker until one of them returns from its
// callback; nothing could be called meanwhile.
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

// runDue calls what is due until nothing is. It returns false if a callback has panicked.
func (c *scheduler) runDue(r *runner) (finished bool) {
	defer func() {
		if r.calling { // a panic or runtime.Goexit
			r.afterCall()
		}
	}()
	defer c.recovered()
	for {
		if c.help(r) { // what has been taken comes before what is due later
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

// fire calls what is due by limit in the shards that have something to do by horizon.
func (c *scheduler) fire(r *runner, limit, horizon int64) {
	for _, s := range *c.shards.Load() {
		if s.base().next.Load() <= horizon {
			s.fire(r, limit)
		}
	}
}

// help calls callbacks of a batch that another runner has taken. It returns false if there is no batch.
func (c *scheduler) help(r *runner) bool {
	b := c.runners.batch()
	if b == nil {
		return false
	}
	b.run(r)
	return true
}

// sleep parks the worker until the next event of a shard or until a producer schedules something earlier. It
// returns false if the runner must end, as the wheel was stopped or has been empty for long.
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
	if next == never {
		timeUp = c.time.after(idleTimeout)
	} else if timeUp = c.time.until(next); timeUp == nil {
		c.wakeAt.Store(awake)
		return true
	}
	select {
	case <-timeUp:
		if next == never && c.retire(r) {
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

// retire ends the runners of an empty wheel and leaves wakeAt at never: from then on a new entry finds no
// worker and starts one. It returns false if an entry came before that, too early to see it.
func (c *scheduler) retire(r *runner) bool {
	c.time.stopTimer()
	c.retired.Add(1)
	if !c.runners.resign(r) {
		return false
	}
	c.wakeAt.Store(never) // it may have been lowered for an entry that a runner other than the worker has taken
	return c.next() == never || !c.runners.resume(r)
}
