package waitqueue

import (
	"time"

	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// queue is the FIFO of one key. The Group's mu guards it.
type queue[K comparable, T any] struct {
	group *Group[K, T]
	key   K

	first, last *Waiter[T]
	size        int
	once        int // waiters that do not wait for a second attempt

	running    bool // a goroutine is in run or lead
	pollNeeded bool // there is a reason for an attempt
	due        time.Time
	timer      wheel.Timer
	stop       func() // ends listening; nil before
	back       []T    // granted to waiters that had gone
	left       []T    // waiters that have gone after they were seen
}

// run works until the queue is parked or empty.
func (q *queue[K, T]) run() {
	for q.step() {
	}
}

// lead is run on the goroutine of a caller. It makes one step, and the last one if the queue is empty then.
// Otherwise run goes on.
func (q *queue[K, T]) lead() {
	if q.step() {
		q.handOn()
	}
}

// leadUntil is lead for a caller that leaves when ended is closed. The step is an attempt for the batch. If it
// would block after that, another goroutine goes on with it.
func (q *queue[K, T]) leadUntil(ended <-chan struct{}, batch []*Waiter[T]) {
	if q.group.cfg.Begin(q.key, batch, ended) {
		q.attempt(batch)
		q.handOn()
		return
	}
	q.group.cfg.Workers.Go(func() {
		q.attempt(batch)
		q.run()
	})
}

func (q *queue[K, T]) attempt(batch []*Waiter[T]) {
	again, err := q.group.cfg.Attempt(q.key, batch)
	q.finishAttempt(batch, again, err)
}

// handOn ends the work of a caller.
func (q *queue[K, T]) handOn() {
	g := q.group
	g.mu.Lock()
	over := q.size == 0 && q.stop == nil && len(q.back)+len(q.left) == 0
	g.mu.Unlock()
	if over {
		q.run()
	} else {
		g.cfg.Workers.Go(q.run)
	}
}

// hasWorkLocked reports whether a goroutine has to be started for the queue.
func (q *queue[K, T]) hasWorkLocked() bool {
	return !q.running && (q.pollNeeded || q.size == 0 || len(q.back)+len(q.left) > 0)
}

// step does what is due next, and reports whether the goroutine goes on.
func (q *queue[K, T]) step() (more bool) {
	g := q.group
	g.mu.Lock()
	switch {
	case len(q.back) > 0 || len(q.left) > 0:
		back, left := q.back, q.left
		q.back, q.left, q.pollNeeded = nil, nil, true
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
	case q.pollNeeded:
		batch := q.beginAttemptLocked(g.cfg.MaxBatch)
		g.mu.Unlock()
		q.attempt(batch)
	case q.stop == nil && g.cfg.Listen != nil:
		g.mu.Unlock()
		stop := g.cfg.Listen(q.key, func() { g.Kick(q.key) })
		g.mu.Lock()
		q.stop = stop
		g.mu.Unlock()
	default:
		more := q.parkLocked()
		g.mu.Unlock()
		return more
	}
	return true
}

// beginAttemptLocked marks the front as in flight and returns it.
func (q *queue[K, T]) beginAttemptLocked(most int) []*Waiter[T] {
	q.pollNeeded = false
	batch := make([]*Waiter[T], 0, min(q.size, most))
	for w := q.first; w != nil && len(batch) < most; w = w.next {
		w.inFlight, w.verdict, w.failure = true, undecided, nil
		batch = append(batch, w)
	}
	return batch
}

// finishAttempt applies the verdicts of an attempt.
func (q *queue[K, T]) finishAttempt(batch []*Waiter[T], again time.Duration, err error) {
	g := q.group
	g.mu.Lock()
	defer g.mu.Unlock()
	d := g.pause(again)
	q.due = g.wheel.Now().Add(d)
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
		case w.once:
			q.settleLocked(w, &NotServedError{Again: d})
		}
	}
	if !stays {
		q.pollNeeded = true
	}
}

// dismissLocked deals with a waiter that was cancelled in flight.
func (q *queue[K, T]) dismissLocked(w *Waiter[T]) {
	switch {
	case w.verdict == granted:
		q.back = append(q.back, w.Value)
	case w.verdict == undecided && q.group.cfg.Leave != nil:
		q.left = append(q.left, w.Value)
	}
}

// parkLocked arms the wheel entry of the next attempt and lets the goroutine end.
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
	if !q.timer.Reschedule(left) {
		var err error
		if q.timer, err = wheelentry.AfterFunc(g.wheel, left, q.tick); err != nil {
			q.failAllLocked(err)
			return true
		}
	}
	q.running = false
	g.gate.Leave()
	return false
}

// tick is the callback of the queue's wheel entry. After the stop of the wheel there would be no further poll.
func (q *queue[K, T]) tick(stopped error) {
	g := q.group
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case stopped != nil:
		q.failAllLocked(stopped)
	case !q.running && g.queues[q.key] == q:
		q.pollNeeded = true
		g.wakeLocked(q)
	}
}

// failAllLocked ends every waiter with an error.
func (q *queue[K, T]) failAllLocked(err error) {
	for q.first != nil {
		q.group.failLocked(q, q.first, err)
	}
}

// settleLocked ends a waiter that is linked.
func (q *queue[K, T]) settleLocked(w *Waiter[T], err error) {
	q.unlinkLocked(w)
	w.settled, w.err = true, err
	w.tellLocked(w.Value)
}

func (q *queue[K, T]) pushLocked(w *Waiter[T]) {
	w.mu, w.prev = &q.group.mu, q.last
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
