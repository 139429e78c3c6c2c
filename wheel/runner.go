package wheel

import (
	"sync/atomic"
	"time"
)

// runner is one of the goroutines that keep the time and run callbacks; see scheduler.work.
type runner struct {
	scheduler *scheduler
	worker    bool          // it is the worker; set by the runner that appoints it
	appointed chan struct{} // receives when it has become the worker; closed to end it while it is idle
	calling   bool
	due       [maxBatch]uint32

	// The clock is not read for each callback: several callbacks are measured as one stretch. After a slow
	// stretch the next callbacks are measured one by one.
	now           int64 // the last reading
	stretch, left int
}

const (
	longStretch = 16                            // callbacks measured as one, at most
	slowStretch = int64(100 * time.Microsecond) // after a stretch as long as this they are measured one by one
)

// newRunner makes a runner that is the worker.
func newRunner(c *scheduler) *runner {
	return &runner{scheduler: c, worker: true, appointed: make(chan struct{}, 1), stretch: 1, left: 1}
}

// beforeCall appoints another worker instead of this runner, because the callback that follows may block.
func (r *runner) beforeCall() {
	r.calling = true
	if r.worker {
		r.worker = false
		r.scheduler.runners.appointWorker(r.scheduler)
	}
}

func (r *runner) afterCall() {
	r.calling = false
	if r.left--; r.left == 0 {
		r.readClock()
	}
}

// readClock ends a stretch.
func (r *runner) readClock() int64 {
	now := r.scheduler.time.now()
	took, calls := now-r.now, r.stretch-r.left
	r.now = now
	if calls == 0 {
		return now
	}
	if calls == 1 || took >= slowStretch {
		r.scheduler.durations.record(took)
	}
	r.stretch = min(2*r.stretch, longStretch)
	if took >= slowStretch {
		r.stretch = 1
	}
	r.left = r.stretch
	return now
}

// durations has the statistics of the times of callbacks.
type durations struct {
	blocking         int64 // those that take longer than this are blocking
	longest, blocked atomic.Int64
}

func (d *durations) record(took int64) {
	for old := d.longest.Load(); took > old && !d.longest.CompareAndSwap(old, took); old = d.longest.Load() {
	}
	if took > d.blocking {
		d.blocked.Add(took)
	}
}
