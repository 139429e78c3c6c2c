package waitqueue

import (
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// queue is the FIFO of one key. The mu of the Group guards it, except for the fields of the attempt in flight. It
// is the Caller of its attempts.
type queue[K comparable, T any] struct {
	group *Group[K, T]
	key   K

	first, last *Waiter[T]
	size        int
	once        int // number of waiters of Try

	running    bool // an attempt is in flight, or a goroutine is in run
	unbuilt    bool // that attempt was submitted, and was not built yet
	mayYield   bool // the next attempt may leave itself to a call that takes it along
	attemptDue bool // the next attempt must not wait for the timer
	due        time.Time
	latest     time.Time // until when the attempt after the one in flight must follow; zero: it decides
	timer      wheel.Timer
	stop       func() // ends Listen; nil before it
	back       []T    // grants whose waiters have left
	left       []T    // values of waiters that the server saw and that have left

	job    calls.Job
	batch  []*Waiter[T]  // of the attempt in flight
	one    [1]*Waiter[T] // the batch of a single waiter
	read   func(redisconn.Reply) (time.Duration, error)
	wanted int // number of waiters in batch that have not left
}

// Build implements calls.Caller. It starts the attempt.
func (q *queue[K, T]) Build() (calls.Call, bool) {
	g := q.group
	if q.stop == nil && g.cfg.Listens != nil && g.cfg.Listens(q.key) {
		q.listen()
	}
	if g.cfg.Gather != nil {
		if n := g.cfg.Gather(q.key); n > 1 {
			calls.Gather(func() bool { return g.Waiting(q.key) >= n })
		}
	}
	g.mu.Lock()
	if q.mayYield && q.once == 0 && g.cfg.Behind != nil {
		g.mu.Unlock()
		if q.yields() {
			return calls.Call{}, false
		}
		g.mu.Lock()
	}
	q.startAttemptLocked(g.cfg.MaxBatch)
	g.mu.Unlock()
	if len(q.batch) == 0 {
		q.run()
		return calls.Call{}, false
	}
	a := g.cfg.Build(q.key, q.batch)
	if a.Read == nil {
		q.finishAttempt(a.Again, nil)
		q.run()
		return calls.Call{}, false
	}
	q.read = a.Read
	if len(q.batch) == 1 {
		a.Call.Values = q.batch[0].ctx
	}
	return a.Call, true
}

// Wanted implements calls.Caller.
func (q *queue[K, T]) Wanted() bool {
	q.group.mu.Lock()
	defer q.group.mu.Unlock()
	return q.wanted > 0
}

// Apply implements calls.Caller.
func (q *queue[K, T]) Apply(r redisconn.Reply) {
	again, err := q.read(r)
	q.read = nil
	q.finishAttempt(again, err)
	q.run()
}

// run advances the queue until an attempt is in flight, or the queue is parked or empty. It does not block.
func (q *queue[K, T]) run() {
	for q.step() {
	}
}

// hasWorkLocked reports whether the queue must run and does not.
func (q *queue[K, T]) hasWorkLocked() bool {
	return !q.running && (q.attemptDue || q.size == 0 || len(q.back)+len(q.left) > 0)
}

// asksLocked reports whether the next step is an attempt.
func (q *queue[K, T]) asksLocked() bool {
	return q.attemptDue && q.size > 0 && len(q.back)+len(q.left) == 0
}

// step makes one step, and reports whether another may follow.
func (q *queue[K, T]) step() (more bool) {
	g := q.group
	g.mu.Lock()
	switch {
	case q.asksLocked():
		q.unbuilt = true
		g.mu.Unlock()
		g.cfg.Submit(calls.Nobody, &q.job, q, q.key)
		return false
	case len(q.back) > 0 || len(q.left) > 0:
		back, left := q.back, q.left
		q.back, q.left, q.attemptDue = nil, nil, true
		g.mu.Unlock()
		if len(back) > 0 && g.cfg.GiveBack != nil {
			g.cfg.GiveBack(q.key, back)
		}
		if len(left) > 0 {
			g.cfg.Leave(q.key, left)
		}
	case q.size == 0:
		q.timer.Stop()
		delete(g.queues, q.key)
		stop := q.stop
		g.mu.Unlock()
		if stop != nil {
			stop()
		}
		g.gate.Leave()
		return false
	case q.stop == nil && g.cfg.Listen != nil:
		g.mu.Unlock()
		q.listen()
	default:
		more := q.parkLocked()
		g.mu.Unlock()
		return more
	}
	return true
}

// listen begins to listen for messages. Only the runner of the queue calls it.
func (q *queue[K, T]) listen() {
	g := q.group
	stop := g.cfg.Listen(q.key, func(in time.Duration) { g.wake(q, in) })
	g.mu.Lock()
	defer g.mu.Unlock()
	q.stop = stop
}

// yieldFor is how long an attempt waits for a call that is to take it along.
const yieldFor = 2 * time.Millisecond

// yields reports whether the attempt has left itself to a call that is about to be built, and takes it along. If that
// call does not, the timer begins the attempt, which does not yield again.
func (q *queue[K, T]) yields() bool {
	g := q.group
	if !g.cfg.Behind(q.key) || !q.parkFor(yieldFor) {
		return false
	}
	if !g.cfg.Behind(q.key) { // it may have been built before this attempt was parked
		g.mu.Lock()
		defer g.mu.Unlock()
		if !q.running && g.queues[q.key] == q {
			q.attemptDue = true
			g.wakeLocked(q)
		}
	}
	return true
}

// parkFor parks the queue before an attempt. It returns false if the attempt must go on.
func (q *queue[K, T]) parkFor(d time.Duration) bool {
	g := q.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if q.once > 0 || q.size == 0 || len(q.back)+len(q.left) > 0 || q.scheduleLocked(d) != nil {
		return false
	}
	q.attemptDue, q.due = false, g.wheel.Now().Add(d) // callers that come meanwhile wait too
	q.running, q.unbuilt, q.mayYield = false, false, false
	g.gate.Leave()
	return true
}

// startAttemptLocked makes the batch of an attempt: the front.
func (q *queue[K, T]) startAttemptLocked(most int) {
	q.attemptDue, q.latest, q.unbuilt, q.mayYield = false, time.Time{}, false, false
	if q.batch = q.one[:0]; q.size > 1 {
		q.batch = make([]*Waiter[T], 0, min(q.size, most))
	}
	for w := q.first; w != nil && len(q.batch) < most; w = w.next {
		w.inFlight, w.verdict, w.failure = true, undecided, nil
		q.batch = append(q.batch, w)
	}
	q.wanted = len(q.batch)
}

// finishAttempt applies the verdicts of an attempt.
func (q *queue[K, T]) finishAttempt(again time.Duration, err error) {
	g := q.group
	g.mu.Lock()
	defer g.mu.Unlock()
	batch := q.batch
	q.batch = nil
	d := time.Duration(0)
	if again == AtOnce {
		q.attemptDue = true
	} else {
		d = g.pause(again)
	}
	refused, stays := false, false
	for _, w := range batch {
		w.inFlight, w.seen = false, true
		if w.verdict == undecided && err != nil {
			w.Fail(err)
		}
		// If the first ungranted waiter leaves, later and smaller requests may now fit.
		if w.verdict != granted && !refused {
			refused, stays = true, w.verdict == undecided && !w.settled && !w.once
		}
		switch {
		case w.settled: // cancelled in flight
			q.dismissLocked(w)
		case w.verdict == granted:
			q.settleLocked(w, nil)
		case w.verdict == failed:
			q.settleLocked(w, w.failure)
		case w.once && again != AtOnce:
			q.settleLocked(w, &NotServedError{Again: d})
		}
	}
	q.mayYield = stays
	if !stays {
		q.attemptDue = true
	}
	if q.size > 0 { // most attempts leave nobody
		q.due = g.wheel.Now().Add(d)
		if !q.latest.IsZero() && q.latest.Before(q.due) {
			q.due = q.latest
		}
	}
}

// dismissLocked handles the verdict of a waiter that was cancelled in flight.
func (q *queue[K, T]) dismissLocked(w *Waiter[T]) {
	switch {
	case w.verdict == granted:
		q.back = append(q.back, w.Value)
	case w.verdict == undecided && q.group.cfg.Leave != nil:
		q.left = append(q.left, w.Value)
	}
}

// parkLocked schedules the next attempt on the wheel. It returns true if there is more to do instead.
func (q *queue[K, T]) parkLocked() (more bool) {
	g := q.group
	left := max(q.due.Sub(g.wheel.Now()), 0)
	for w := q.first; w != nil && q.once > 0; {
		next := w.next
		if w.once {
			q.settleLocked(w, &NotServedError{Again: left})
		}
		w = next
	}
	if q.size == 0 {
		return true
	}
	if err := q.scheduleLocked(left); err != nil {
		q.failAllLocked(err)
		return true
	}
	q.running = false
	g.gate.Leave()
	return false
}

// scheduleLocked schedules the callback tick.
func (q *queue[K, T]) scheduleLocked(d time.Duration) (err error) {
	if q.timer.Reschedule(d) {
		return nil
	}
	q.timer, err = wheelentry.AfterFunc(q.group.wheel, d, q.tick)
	return err
}

// tick is the callback of the queue's wheel entry. If the wheel is stopped, it fails all waiters, as no poll would
// follow.
func (q *queue[K, T]) tick(stopped error) {
	g := q.group
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case stopped != nil:
		q.failAllLocked(stopped)
	case !q.running && g.queues[q.key] == q:
		q.attemptDue = true
		g.wakeLocked(q)
	}
}

// failAllLocked fails every waiter.
func (q *queue[K, T]) failAllLocked(err error) {
	for q.first != nil {
		q.group.failLocked(q, q.first, err)
	}
}

// settleLocked settles a linked waiter.
func (q *queue[K, T]) settleLocked(w *Waiter[T], err error) {
	q.unlinkLocked(w)
	w.settled, w.err = true, err
	w.tellLocked(w.Value)
}

func (q *queue[K, T]) pushLocked(w *Waiter[T]) {
	w.prev = q.last
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
	q.size++
	q.group.size++
	if w.once {
		q.once++
	}
}

func (q *queue[K, T]) unlinkLocked(w *Waiter[T]) {
	if w.prev == nil {
		q.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next = nil, nil
	q.size--
	q.group.size--
	if w.once {
		q.once--
	}
}
