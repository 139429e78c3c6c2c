package wheel

import (
	"bytes"
	"context"
	"math"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// Executor says where callbacks run: Inline, Goroutines or Pool.
type Executor struct {
	kind executorKind
	size int
}

type executorKind int

const (
	executorUnset executorKind = iota
	executorInline
	executorGoroutines
	executorPool
)

// Inline runs callbacks on the wheel's worker, as Netty does by default: no hand-over, but a callback that
// blocks delays every other entry. For callbacks known to be short.
func Inline() Executor { return Executor{kind: executorInline} }

// Goroutines lets no callback wait for another, as time.AfterFunc does: before one begins, a goroutine is on its way
// to the next. Callbacks that do not block share few goroutines; each that blocks has one to itself.
func Goroutines() Executor { return Executor{kind: executorGoroutines, size: math.MaxInt} }

// Pool runs callbacks on n goroutines, started when first needed and kept until the wheel stops. A callback
// that blocks is noticed within about a tick (at least 1 ms), and another goroutine takes over what is behind
// it, so that slow callbacks cost goroutines, not punctuality.
func Pool(n int) Executor { return Executor{kind: executorPool, size: n} }

func (e Executor) String() string {
	switch e.kind {
	case executorInline:
		return "Inline"
	case executorGoroutines:
		return "Goroutines"
	case executorPool:
		return "Pool(" + strconv.Itoa(e.size) + ")"
	default:
		return "unset"
	}
}

// idleGoroutines is how many finished goroutines Goroutines keeps for reuse.
const idleGoroutines = 64

// work is a batch, whatever its values are.
type work interface {
	run()
	progress() (claimed, left int64)
	join()
	leave()
}

// executor runs batches on runners: goroutines that stay for the next batch. Inline has one runner, the worker.
type executor struct {
	kind  executorKind
	limit int  // runners that may be at work, not counting blocked ones
	keep  int  // idle runners to keep
	eager bool // Goroutines: who begins a callback first sends for somebody to do the next

	mu      sync.Mutex
	runners map[*runner]struct{} // all of them
	idle    []*runner
	watched []*runner // those that rescue looks at: at work, with something behind them at the last look
	queue   []work
	blocked int // runners that made no progress between two looks and have not ended their batch since
	halted  bool
	resting bool          // the worker has retired: nobody stays idle
	gone    chan struct{} // closed once halted and no runner is left
	looked  int64         // when rescue last looked
	inline  work          // Inline only: what the worker is running
}

type runner struct {
	next chan work // closed to end an idle runner
	work work
	goid int64

	place   int   // in watched, -1 if it is not there
	claimed int64 // progress of work at the last look, -1 if there was none yet
	blocked bool
}

func newExecutor(e Executor) *executor {
	x := &executor{kind: e.kind, limit: e.size, keep: e.size, runners: make(map[*runner]struct{}), gone: make(chan struct{})}
	if e.kind == executorGoroutines {
		x.keep, x.eager = idleGoroutines, true
	}
	return x
}

// submit hands a batch over without running or waiting for any of it. The caller holds the core's handover
// lock, which keeps halt out.
func (x *executor) submit(w work) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.resting = false
	w.join()
	x.place(w)
}

// accompany puts one more runner on a batch that is being run. The caller is one of its runners.
func (x *executor) accompany(w work) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.halted {
		w.join()
		x.place(w)
	}
}

// place gives a batch to a runner: an idle one, a new one, or the next that becomes free.
func (x *executor) place(w work) {
	switch {
	case x.kind == executorInline:
		x.inline = w
	case len(x.idle) > 0:
		r := x.idle[len(x.idle)-1]
		x.idle = x.idle[:len(x.idle)-1]
		x.assign(r, w)
		r.next <- w
	case len(x.runners)-x.blocked < x.limit:
		x.spawn(w)
	default:
		x.queue = append(x.queue, w)
	}
}

// runInline runs what was submitted last on the calling goroutine, the worker. Inline only.
func (x *executor) runInline() {
	if x.inline == nil {
		return
	}
	x.inline.run()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.inline.leave()
	x.inline = nil
}

// assign gives a runner its next batch, to be watched unless nobody ever waits behind a callback.
func (x *executor) assign(r *runner, w work) {
	r.work, r.claimed, r.place = w, -1, -1
	if !x.eager {
		r.place = len(x.watched)
		x.watched = append(x.watched, r)
	}
}

func (x *executor) unwatch(r *runner) {
	if r.place < 0 {
		return
	}
	last := len(x.watched) - 1
	x.watched[r.place] = x.watched[last]
	x.watched[r.place].place = r.place
	x.watched[last] = nil
	x.watched = x.watched[:last]
	r.place = -1
}

// spawn starts a runner; the caller holds mu.
func (x *executor) spawn(w work) {
	r := &runner{next: make(chan work, 1)}
	x.assign(r, w)
	x.runners[r] = struct{}{}
	go x.serve(r, w)
}

// serve is a runner's life. A callback that ends its goroutine with runtime.Goexit passes it on to another.
func (x *executor) serve(r *runner, w work) {
	done := false
	defer func() {
		if !done {
			go x.serve(r, w)
		}
	}()
	x.mu.Lock()
	r.goid = goroutineID()
	x.mu.Unlock()
	for w != nil {
		w.run()
		w = x.turn(r)
	}
	done = true
}

// turn ends a runner's work and returns its next, waiting for it; nil ends the runner.
func (x *executor) turn(r *runner) work {
	x.mu.Lock()
	r.work.leave()
	r.work = nil
	x.unwatch(r)
	if r.blocked {
		r.blocked = false
		x.blocked--
	}
	switch {
	case x.halted || x.resting || len(x.runners)-x.blocked > x.limit:
	case len(x.queue) > 0:
		w := x.dequeue()
		x.assign(r, w)
		x.mu.Unlock()
		return w
	case len(x.idle) < x.keep:
		x.idle = append(x.idle, r)
		x.mu.Unlock()
		return <-r.next
	}
	x.remove(r)
	x.mu.Unlock()
	return nil
}

func (x *executor) remove(r *runner) {
	delete(x.runners, r)
	if x.halted && len(x.runners) == 0 {
		close(x.gone)
	}
}

// rescue looks, at most once in patience, for runners that are still in the callback of the last look, and puts
// as many new ones on what waits behind them; while all of them block, their number doubles. It reports
// whether to look again after patience.
func (x *executor) rescue(now, patience int64) (again bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.watched) == 0 {
		return false
	}
	if now-x.looked < patience {
		return true
	}
	x.looked = now
	var stuck []*runner
	for _, r := range x.watched {
		claimed, _ := r.work.progress()
		if r.claimed == claimed {
			stuck = append(stuck, r)
		}
		r.claimed = claimed
	}
	lively := len(x.watched) - len(stuck)
	for _, r := range stuck {
		x.relieve(r)
	}
	if lively == 0 {
		x.serveQueue(len(stuck))
	} else {
		x.serveQueue(x.limit - (len(x.runners) - x.blocked))
	}
	return len(x.watched) > 0
}

// relieve counts a runner as blocked and puts another on the rest of its batch; without a rest there is nothing
// to watch until it returns.
func (x *executor) relieve(r *runner) {
	if !r.blocked {
		r.blocked = true
		x.blocked++
	}
	if _, left := r.work.progress(); left > 0 {
		r.work.join()
		x.spawn(r.work)
		return
	}
	x.unwatch(r)
}

// serveQueue starts at most n runners on batches from the queue.
func (x *executor) serveQueue(n int) {
	for ; n > 0 && len(x.queue) > 0; n-- {
		x.spawn(x.dequeue())
	}
}

func (x *executor) dequeue() work {
	w := x.queue[0]
	x.queue[0] = nil
	x.queue = x.queue[1:]
	return w
}

// halt stops handing out work and passes each batch that may hold unclaimed values to steal.
func (x *executor) halt(steal func(work)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.halted = true
	for _, w := range x.queue {
		steal(w)
	}
	x.queue = nil
	if x.inline != nil {
		steal(x.inline)
	}
	for r := range x.runners {
		if r.work != nil {
			steal(r.work)
		}
	}
	x.dismissIdle()
	if len(x.runners) == 0 {
		close(x.gone)
	}
}

// dismiss ends the idle runners, and each of the others when its batch is done, until the next submit.
func (x *executor) dismiss() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.resting = true
	x.dismissIdle()
}

func (x *executor) dismissIdle() {
	for _, r := range x.idle {
		close(r.next)
		delete(x.runners, r)
	}
	x.idle = nil
}

// owns reports whether the goroutine is one of the runners.
func (x *executor) owns(goid int64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for r := range x.runners {
		if r.goid == goid {
			return true
		}
	}
	return false
}

// wait waits until every running callback has returned.
func (x *executor) wait(ctx context.Context) error {
	select {
	case <-x.gone:
		return nil
	default:
	}
	select {
	case <-x.gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// goroutineID reads the current goroutine's number off its stack trace. It serves the check of Stop alone.
func goroutineID() int64 {
	var buf [64]byte
	fields := bytes.Fields(buf[:runtime.Stack(buf[:], false)])
	id, _ := strconv.ParseInt(string(fields[1]), 10, 64)
	return id
}

// patience is how long a runner may stay in one callback while others wait behind it.
func patience(tick time.Duration) int64 {
	return int64(min(max(tick, time.Millisecond), 10*time.Millisecond))
}
