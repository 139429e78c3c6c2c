package wheel

import "time"

// work is the wheel's one goroutine. It owns the passing of time: it hands due entries to the executor and
// sleeps until the next event of any shard, without end while there is none.
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
	for {
		now := c.time.now()
		next := c.expireAll(now, due[:0:c.exec.batchSize()])
		if c.exec.rescue(now, patience(c.tick)) {
			next = min(next, now+patience(c.tick))
		}
		if !c.sleep(next) {
			break
		}
	}
	c.time.rest()
	ended = true
	close(c.done)
}

// expireAll hands over everything due by now and returns the instant of the next event.
func (c *core) expireAll(now int64, due []uint32) (next int64) {
	next = never
	for _, e := range *c.shards.Load() {
		s := e.base()
		if s.next.Load() <= now {
			for e.expire(now, due) && !c.stopped.Load() {
			}
		}
		next = min(next, s.next.Load())
	}
	return next
}

// sleep parks the worker until next or until a producer schedules something earlier. It returns false when the
// wheel has stopped.
func (c *core) sleep(next int64) bool {
	if c.stopped.Load() {
		return false
	}
	c.wakeAt.Store(next)
	defer c.wakeAt.Store(awake)
	for _, e := range *c.shards.Load() {
		if e.base().next.Load() < next {
			return true
		}
	}
	var timeout <-chan time.Time
	if next == never {
		c.time.rest()
	} else if d := next - c.time.now(); d > 0 {
		timeout = c.time.after(time.Duration(d))
	} else {
		return true
	}
	select {
	case <-timeout:
	case <-c.wake:
	case <-c.stop:
		return false
	}
	c.wakeups.Add(1)
	return true
}
