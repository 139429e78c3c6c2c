// Package netty is a plain Go rendering of the algorithm of Netty's HashedWheelTimer, written to be measured
// against: producers hand timeouts over through one multi-producer queue, a worker that wakes every tick
// moves them into linked buckets and walks the due bucket, counting remainingRounds down in every entry it
// passes.
package netty

import (
	"sync/atomic"
	"time"
)

// transferLimit is how many new timeouts the worker places per tick.
const transferLimit = 100_000

const (
	pending int32 = iota
	expired
	cancelled
)

// Timeout is one scheduled function.
type Timeout struct {
	timer           *Timer
	task            func()
	deadline        int64
	remainingRounds int64
	state           atomic.Int32

	queued     atomic.Pointer[Timeout] // in the intake or the cancel queue
	next, prev *Timeout                // in a bucket
	bucket     *bucket
}

// Cancel ends the timeout if it has not expired; the worker unlinks it at its next tick.
func (t *Timeout) Cancel() bool {
	if !t.state.CompareAndSwap(pending, cancelled) {
		return false
	}
	t.timer.cancels.push(&cancellation{timeout: t})
	return true
}

type bucket struct{ head, tail *Timeout }

func (b *bucket) add(t *Timeout) {
	t.bucket = b
	if b.tail == nil {
		b.head, b.tail = t, t
		return
	}
	t.prev, b.tail.next, b.tail = b.tail, t, t
}

func (b *bucket) remove(t *Timeout) {
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		b.head = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	} else {
		b.tail = t.prev
	}
	t.next, t.prev, t.bucket = nil, nil, nil
}

// Timer is the wheel and its worker.
type Timer struct {
	tick    int64
	buckets []bucket
	start   time.Time
	intake  queue[Timeout]
	cancels queue[cancellation]
	stop    chan struct{}
	done    chan struct{}
}

type cancellation struct {
	timeout *Timeout
	queued  atomic.Pointer[cancellation]
}

func (t *Timeout) link() *atomic.Pointer[Timeout]           { return &t.queued }
func (c *cancellation) link() *atomic.Pointer[cancellation] { return &c.queued }

// New starts a wheel; buckets must be a power of two.
func New(tick time.Duration, buckets int) *Timer {
	t := &Timer{
		tick: int64(tick), buckets: make([]bucket, buckets), start: time.Now(),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	t.intake.init(new(Timeout))
	t.cancels.init(new(cancellation))
	go t.work()
	return t
}

// NewTimeout schedules task on the worker.
func (t *Timer) NewTimeout(task func(), delay time.Duration) *Timeout {
	timeout := &Timeout{timer: t, task: task, deadline: int64(time.Since(t.start)) + int64(delay)}
	t.intake.push(timeout)
	return timeout
}

// Stop ends the worker.
func (t *Timer) Stop() {
	close(t.stop)
	<-t.done
}

func (t *Timer) work() {
	defer close(t.done)
	for tick := int64(0); ; tick++ {
		for {
			left := time.Duration(t.tick*(tick+1)) - time.Since(t.start)
			if left <= 0 {
				break
			}
			time.Sleep(left)
		}
		select {
		case <-t.stop:
			return
		default:
		}
		t.transfer(tick)
		t.expire(&t.buckets[tick&int64(len(t.buckets)-1)])
		for c := t.cancels.pop(); c != nil; c = t.cancels.pop() {
			if c.timeout.bucket != nil {
				c.timeout.bucket.remove(c.timeout)
			}
		}
	}
}

func (t *Timer) transfer(tick int64) {
	for range transferLimit {
		timeout := t.intake.pop()
		if timeout == nil {
			return
		}
		if timeout.state.Load() == cancelled {
			continue
		}
		at := timeout.deadline / t.tick
		timeout.remainingRounds = (at - tick) / int64(len(t.buckets))
		t.buckets[max(at, tick)&int64(len(t.buckets)-1)].add(timeout)
	}
}

func (t *Timer) expire(b *bucket) {
	for timeout := b.head; timeout != nil; {
		next := timeout.next
		switch {
		case timeout.remainingRounds > 0:
			timeout.remainingRounds--
		default:
			b.remove(timeout)
			if timeout.state.CompareAndSwap(pending, expired) {
				timeout.task()
			}
		}
		timeout = next
	}
}
