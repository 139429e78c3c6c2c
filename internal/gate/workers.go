package gate

import (
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	// maxIdle is how many goroutines wait for work at most.
	maxIdle = 16

	// idleFor is how long a goroutine waits for work before it ends: up to twice as long.
	idleFor = time.Second
)

// Workers runs functions on goroutines that are used again. A call to Redis needs a stack several times larger
// than that of a new goroutine, and growing the stack costs more than the call itself. Goroutines that are not
// needed end after a second or two, all of them after Close. It is safe for concurrent use.
type Workers struct {
	wheel *wheel.Wheel

	mu     sync.Mutex
	idle   []chan func() // the last one is used first
	spare  int           // how many of them were not needed since the last look
	looks  bool          // a wheel entry for the next look is pending: timer
	timer  wheel.Timer
	closed bool
}

// NewWorkers returns Workers without goroutines. They end by entries on w.
func NewWorkers(w *wheel.Wheel) *Workers { return &Workers{wheel: w} }

// Go calls f on a goroutine, also after Close. Without Workers, it starts a new one.
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

// Close ends the goroutines that wait for work, and the others when they have none. It does not wait.
func (w *Workers) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.timer.Stop()
	w.endLocked(len(w.idle))
}

// run calls f, and then what comes next. A function that panics or ends its goroutine ends the worker too.
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

// park enters a worker that has no work, and reports whether it is to wait for some.
func (w *Workers) park(work chan func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || len(w.idle) == maxIdle || !w.lookLocked() {
		return false
	}
	w.idle = append(w.idle, work)
	return true
}

// lookLocked sees to it that a look is due, and reports whether one is.
func (w *Workers) lookLocked() bool {
	if !w.looks {
		var err error
		w.timer, err = wheelentry.AfterFunc(w.wheel, idleFor, w.look)
		w.looks, w.spare = err == nil, len(w.idle)
	}
	return w.looks
}

// look ends the workers that were not needed since the last look. If the wheel takes no entry for the next one, it
// ends all.
func (w *Workers) look(error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks = false
	if w.closed {
		return
	}
	w.endLocked(w.spare)
	if len(w.idle) > 0 && !w.lookLocked() {
		w.endLocked(len(w.idle))
	}
}

// endLocked ends the n workers that have waited longest.
func (w *Workers) endLocked(n int) {
	for _, worker := range w.idle[:n] {
		close(worker)
	}
	w.idle = append(w.idle[:0], w.idle[n:]...)
}
