package gate

import (
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	// maxIdle is the maximum number of idle goroutines.
	maxIdle = 16

	// idleFor is the interval at which idle goroutines end: one ends after one to two intervals without work.
	idleFor = time.Second
)

// Workers runs functions on reused goroutines. A call to Redis needs a stack several times larger than the stack of a
// new goroutine, and growing it costs more than the call. Idle goroutines end after one to two seconds, and at Close.
// Workers is safe for concurrent use.
type Workers struct {
	wheel *wheel.Wheel

	mu     sync.Mutex
	idle   []chan func() // of idle goroutines; the last one is used first
	spare  int           // the lowest length of idle since the last trim
	trims  bool          // timer is pending
	timer  wheel.Timer
	closed bool
}

// NewWorkers returns Workers without goroutines. Entries on w end idle goroutines.
func NewWorkers(w *wheel.Wheel) *Workers { return &Workers{wheel: w} }

// Go calls f on another goroutine, also after Close. A nil Workers starts a new goroutine for each call.
func (w *Workers) Go(f func()) {
	if w == nil {
		go f()
		return
	}
	w.mu.Lock()
	last := len(w.idle) - 1
	if last < 0 {
		w.mu.Unlock()
		go w.run(f)
		return
	}
	worker := w.idle[last]
	w.idle = w.idle[:last]
	w.spare = min(w.spare, last)
	w.mu.Unlock()
	worker <- f // has room
}

// Close ends the idle goroutines, and each busy one when its function returns. It does not wait for them.
func (w *Workers) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.timer.Stop()
	w.endLocked(len(w.idle))
}

// run calls f and then the functions that follow. A function that panics or calls runtime.Goexit ends the goroutine.
func (w *Workers) run(f func()) {
	work := make(chan func(), 1)
	for f != nil {
		f()
		if !w.park(work) {
			return
		}
		f = <-work
	}
}

// park adds a goroutine to the idle ones. It returns false if the goroutine must end instead.
func (w *Workers) park(work chan func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || len(w.idle) == maxIdle || !w.armTrimLocked() {
		return false
	}
	w.idle = append(w.idle, work)
	return true
}

// armTrimLocked schedules the next trim, unless it is scheduled. It returns false if the wheel takes no entry.
func (w *Workers) armTrimLocked() bool {
	if !w.trims {
		var err error
		w.timer, err = wheelentry.AfterFunc(w.wheel, idleFor, w.trim)
		w.trims, w.spare = err == nil, len(w.idle)
	}
	return w.trims
}

// trim ends the goroutines that were idle since the last trim, or all idle ones if the next trim cannot be scheduled.
func (w *Workers) trim(error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trims = false
	if w.closed {
		return
	}
	w.endLocked(w.spare)
	if len(w.idle) > 0 && !w.armTrimLocked() {
		w.endLocked(len(w.idle))
	}
}

// endLocked ends the n goroutines that have been idle for longest.
func (w *Workers) endLocked(n int) {
	for _, worker := range w.idle[:n] {
		close(worker)
	}
	w.idle = append(w.idle[:0], w.idle[n:]...)
}
