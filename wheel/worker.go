package wheel

import "time"

// linger is how long an empty wheel keeps its goroutines, so that light use does not restart them each time.
const linger = 100 * time.Millisecond

// glance is how long a look at the shards may take before the worker looks again instead of going to sleep: more
// has come due meanwhile in the tick that is running, and a sleep of less than 1 ms takes about 1.1 ms in an idle process.
const glance = int64(200 * time.Microsecond)

// work is the wheel's one goroutine. It owns the passing of time: it hands due entries to the executor and
// sleeps until the next event of any shard. When the wheel has been empty for a while it ends, and the next
// entry starts it again: a wheel that is idle or forgotten costs nothing.
func (c *core) work() {
	ended := false
	defer func() {
		if !ended { // an inline callback has called runtime.Goexit
			go c.work()
		}
	}()
	c.workerID.Store(goroutineID())
	c.exec.runInline()
	var due [batchSize]uint32
	ahead := int64(0)
	for outcome := slept; outcome != stopped && outcome != retired; {
		now := c.time.now()
		next := c.expireAll(now, now+ahead, due[:0])
		if c.exec.rescue(now, patience(c.tick)) {
			next = min(next, now+patience(c.tick))
		}
		if c.time.now()-now > glance && !c.stopped.Load() {
			ahead = int64(c.tick)
			continue
		}
		ahead = 0
		if outcome = c.sleep(next); outcome == stopped {
			c.time.rest()
			running.Add(-1)
			close(c.done)
		}
	}
	ended = true
}

// expireAll hands over what is due by now in each shard that has an event up to the horizon, and returns the instant
// of the next event.
func (c *core) expireAll(now, horizon int64, due []uint32) (next int64) {
	next = never
	for _, e := range *c.shards.Load() {
		s := e.base()
		if s.next.Load() <= horizon {
			for e.expire(now, due) && !c.stopped.Load() {
			}
		}
		next = min(next, s.next.Load())
	}
	return next
}

// outcome is why sleep returned.
type outcome int

const (
	slept   outcome = iota
	stopped         // the wheel's Stop has begun
	retired         // the wheel was empty for long; this goroutine is no longer the worker
)

// sleep parks the worker until next, until a producer schedules something earlier or until the wheel stops.
func (c *core) sleep(next int64) outcome {
	if c.stopped.Load() {
		return stopped
	}
	c.wakeAt.Store(next)
	if c.overslept(next) {
		c.wakeAt.Store(awake)
		return slept
	}
	wait := linger
	if next != never {
		wait = time.Duration(next - c.time.now())
	}
	if wait > 0 {
		select {
		case <-c.time.after(wait):
			if next == never && c.retire() {
				return retired
			}
		case <-c.wake:
		case <-c.stop:
			return stopped
		}
		c.wakeups.Add(1)
	}
	c.wakeAt.Store(awake)
	return slept
}

// overslept reports whether a shard has something to do before next.
func (c *core) overslept(next int64) bool {
	for _, e := range *c.shards.Load() {
		if e.base().next.Load() < next {
			return true
		}
	}
	return false
}

// retire gives up the role of the worker, with wakeAt left at never: from then on the kick of a new entry finds
// no worker and starts one. It returns false if such an entry, or the wheel's Stop, came too early to see that.
func (c *core) retire() bool {
	c.exec.dismiss()
	c.time.rest()
	c.retired.Add(1)
	running.Add(-1)
	c.started.Store(false)
	if needed := c.stopped.Load() || c.overslept(never); !needed || !c.started.CompareAndSwap(false, true) {
		return true
	}
	running.Add(1)
	return false
}
