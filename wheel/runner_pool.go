package wheel

import (
	"math"
	"sync"
)

// spareRunners is how many idle runners a pool without a limit keeps.
const spareRunners = 64

// runnerPool has the runners of a wheel and their batches. It knows which runner is the worker; see
// scheduler.work.
type runnerPool struct {
	limit     int // of runners
	spare     int // limit of idle runners
	batchSize int // entries that a runner takes at once; 1 if the rest could wait long for help

	mu      sync.Mutex
	worker  bool // a runner is the worker, or has been appointed and is about to be
	runners int
	idle    []*runner
	batches []openBatch // those with callbacks that no runner has claimed
	calls   int         // tasks of ExecutorFunc that are running a callback
	halted  bool
	begun   chan struct{} // closed once halted and no batch is left
	ended   chan struct{} // closed once halted and no runner and no call is left
}

func (p *runnerPool) init(e Executor) {
	p.limit, p.spare, p.batchSize = e.limit, e.limit, 1
	if e.limit == math.MaxInt {
		p.spare, p.batchSize = spareRunners, maxBatch
	}
	p.begun, p.ended = make(chan struct{}), make(chan struct{})
}

// startWorker returns false if there is a worker, which may be asleep. Otherwise it starts a runner as the
// worker, if the limit allows it; if not, the first runner to return from its callback becomes the worker.
func (p *runnerPool) startWorker(c *scheduler) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.worker {
		return false
	}
	if p.runners < p.limit && !p.halted {
		p.startLocked(c)
	}
	return true
}

// startLocked starts a runner, which is the worker.
func (p *runnerPool) startLocked(c *scheduler) {
	p.addRunnerLocked()
	p.worker = true
	go c.work(newRunner(c))
}

// appointWorker makes another runner the worker, if one more is allowed.
func (p *runnerPool) appointWorker(c *scheduler) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.idle) - 1
	switch {
	case last >= 0:
		next := p.idle[last]
		p.idle = p.idle[:last]
		next.worker = true
		next.appointed <- struct{}{}
	case p.runners < p.limit:
		p.startLocked(c)
	default:
		p.worker = false
	}
}

// park blocks a runner without work until it becomes the worker. It returns false if the runner must end
// instead.
func (p *runnerPool) park(r *runner) bool {
	p.mu.Lock()
	switch {
	case p.halted || p.worker && len(p.idle) >= p.spare:
		p.removeRunnersLocked(1)
		p.mu.Unlock()
		return false
	case !p.worker:
		p.worker, r.worker = true, true
		p.mu.Unlock()
		return true
	}
	p.idle = append(p.idle, r)
	p.mu.Unlock()
	_, ok := <-r.appointed
	return ok
}

// resign ends the worker without a replacement, and all idle runners. If there is a batch to help with, it
// returns false and ends nothing.
func (p *runnerPool) resign(r *runner) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.batches) > 0 {
		return false
	}
	p.endIdleLocked()
	p.worker, r.worker = false, false
	p.removeRunnersLocked(1)
	return true
}

// resume reverts resign, unless there is another worker by now.
func (p *runnerPool) resume(r *runner) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.worker || p.halted {
		return false
	}
	p.addRunnerLocked()
	p.worker, r.worker = true, true
	return true
}

func (p *runnerPool) endIdleLocked() {
	for _, r := range p.idle {
		close(r.appointed)
	}
	p.removeRunnersLocked(len(p.idle))
	p.idle = nil
}

func (p *runnerPool) addRunnerLocked() {
	if p.runners++; p.runners == 1 {
		running.Add(1)
	}
}

func (p *runnerPool) removeRunnersLocked(n int) {
	if p.runners -= n; p.runners == 0 && n > 0 {
		running.Add(-1)
	}
	p.checkEndedLocked()
}

// open lets other runners help with a batch, which the caller will run. If there is no worker now, no runner
// would come to help: then the caller becomes the worker, and appoints another before it calls anything.
func (p *runnerPool) open(b openBatch, r *runner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.worker {
		p.worker, r.worker = true, true
	}
	b.retain() // for the caller
	b.retain() // for as long as it is open
	b.setPlaceLocked(len(p.batches))
	p.batches = append(p.batches, b)
}

// openAtStop opens a batch to one more runner, whatever the limit is: callbacks that block may occupy all
// others.
func (p *runnerPool) openAtStop(c *scheduler, b openBatch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = math.MaxInt
	b.retain() // for as long as it is open
	b.setPlaceLocked(len(p.batches))
	p.batches = append(p.batches, b)
	r := newRunner(c)
	r.worker, p.worker = !p.worker, true
	p.addRunnerLocked()
	go c.work(r)
}

// batch returns one of the open batches, the oldest if none was closed lately, or nil. The caller runs it.
func (p *runnerPool) batch() openBatch {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.batches) == 0 {
		return nil
	}
	p.batches[0].retain()
	return p.batches[0]
}

// hasBatch reports whether there is a batch to help with.
func (p *runnerPool) hasBatch() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.batches) > 0
}

// close ends the help with a batch whose callbacks are all claimed.
func (p *runnerPool) close(b openBatch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	place := b.setPlaceLocked(-1)
	if place < 0 {
		return // another runner of the batch has closed it
	}
	last := len(p.batches) - 1
	if end := p.batches[last]; end != b {
		end.setPlaceLocked(place)
		p.batches[place] = end
	}
	p.batches[last] = nil
	p.batches = p.batches[:last]
	if p.halted && last == 0 {
		close(p.begun)
	}
	b.release()
}

// beginCall counts a callback that a task of ExecutorFunc begins.
func (p *runnerPool) beginCall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
}

func (p *runnerPool) endCall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls--
	p.checkEndedLocked()
}

// halt ends the runners, each when its callback has returned and no batch is left. The shards must be closed.
func (p *runnerPool) halt() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.halted = true
	if len(p.batches) == 0 {
		close(p.begun)
	}
	p.endIdleLocked()
}

func (p *runnerPool) checkEndedLocked() {
	if p.halted && p.runners == 0 && p.calls == 0 {
		close(p.ended)
	}
}
