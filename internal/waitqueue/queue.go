package waitqueue

import (
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// queue is the FIFO of one name.
type queue[T any] struct {
	group *Group[T]
	name  string

	first, last *Waiter[T]
	size        int
	once        int // waiters that do not wait for a second look

	running bool // a goroutine is in run or lead
	look    bool // there is a reason to look
	due     time.Time
	timer   wheel.Timer
	stop    func() // ends listening; nil before
	back    []T    // granted to waiters that had gone
	left    []T    // waiters that have gone after they were seen
}

// run works until the queue has to wait or is empty.
func (q *queue[T]) run() {
	for q.step() {
	}
}

// lead is run for a caller who has nothing else to do: one step, and the last if nothing is left but to go. Otherwise run goes on.
func (q *queue[T]) lead() {
	if !q.step() {
		return
	}
	g := q.group
	g.mu.Lock()
	over := q.size == 0 && q.stop == nil && len(q.back)+len(q.left) == 0
	g.mu.Unlock()
	if over {
		q.run()
	} else {
		go q.run()
	}
}

// idleWithWork reports whether there is something to do and nobody who does it. mu is held.
func (q *queue[T]) idleWithWork() bool {
	return !q.running && (q.look || q.size == 0 || len(q.back)+len(q.left) > 0)
}

func (q *queue[T]) step() (more bool) {
	g := q.group
	g.mu.Lock()
	switch {
	case len(q.back) > 0 || len(q.left) > 0:
		back, left := q.back, q.left
		q.back, q.left, q.look = nil, nil, true
		g.mu.Unlock()
		if len(back) > 0 && g.cfg.GiveBack != nil {
			g.cfg.GiveBack(q.name, back)
		}
		if len(left) > 0 {
			g.cfg.Leave(q.name, left)
		}
	case q.size == 0:
		q.timer.Stop()
		delete(g.queues, q.name)
		stop := q.stop
		g.mu.Unlock()
		if stop != nil {
			stop()
		}
		g.mu.Lock()
		g.leave()
		g.mu.Unlock()
		return false
	case q.look:
		batch := q.depart(g.cfg.MaxBatch)
		g.mu.Unlock()
		again, err := g.cfg.Attempt(q.name, batch)
		q.arrive(batch, again, err)
	case q.stop == nil && g.cfg.Listen != nil:
		g.mu.Unlock()
		stop := g.cfg.Listen(q.name, func() { g.Kick(q.name) })
		g.mu.Lock()
		q.stop = stop
		g.mu.Unlock()
	default:
		more := q.rest()
		g.mu.Unlock()
		return more
	}
	return true
}

// depart marks the front as in flight. mu is held.
func (q *queue[T]) depart(most int) []*Waiter[T] {
	q.look = false
	batch := make([]*Waiter[T], 0, min(q.size, most))
	for w := q.first; w != nil && len(batch) < most; w = w.next {
		w.inFlight, w.verdict, w.failure = true, undecided, nil
		batch = append(batch, w)
	}
	return batch
}

// arrive applies what the attempt said.
func (q *queue[T]) arrive(batch []*Waiter[T], again time.Duration, err error) {
	g := q.group
	g.mu.Lock()
	defer g.mu.Unlock()
	d := g.pause(again)
	q.due = time.Now().Add(d)
	refused, stays := false, false
	for _, w := range batch {
		w.inFlight, w.seen = false, true
		if w.verdict == undecided && err != nil {
			w.Fail(err)
		}
		// What the first who got nothing wanted may suffice for those behind him, unless he waits on.
		if w.verdict != granted && !refused {
			refused, stays = true, w.verdict == undecided && !w.settled && !w.once
		}
		switch {
		case w.settled: // gone meanwhile
			q.afterwards(w)
		case w.verdict == granted:
			q.settle(w, nil)
		case w.verdict == failed:
			q.settle(w, w.failure)
		case w.once:
			q.settle(w, &NotServedError{Again: d})
		}
	}
	if !stays {
		q.look = true
	}
}

// afterwards deals with a waiter that was cancelled in flight. mu is held.
func (q *queue[T]) afterwards(w *Waiter[T]) {
	switch {
	case w.verdict == granted:
		q.back = append(q.back, w.Value)
	case w.verdict == undecided && q.group.cfg.Leave != nil:
		q.left = append(q.left, w.Value)
	}
}

// rest arms the next look and lets the goroutine end. mu is held.
func (q *queue[T]) rest() (more bool) {
	g := q.group
	left := max(time.Until(q.due), 0)
	for w := q.first; w != nil && q.once > 0; {
		next := w.next
		if w.once {
			q.settle(w, &NotServedError{Again: left})
		}
		w = next
	}
	if q.size == 0 {
		return true
	}
	if !q.timer.Reset(left) {
		var err error
		if q.timer, err = g.wheel.AfterFunc(left, q.tick); err != nil {
			for q.first != nil {
				g.fail(q.first, err)
			}
			return true
		}
	}
	q.running = false
	g.leave()
	return false
}

// tick is the callback of the queue's one wheel entry.
func (q *queue[T]) tick() {
	g := q.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if !q.running && g.queues[q.name] == q {
		q.look = true
		g.wake(q)
	}
}

// settle ends a waiter that is linked. mu is held.
func (q *queue[T]) settle(w *Waiter[T], err error) {
	q.unlink(w)
	w.settled, w.err = true, err
	w.tell(w.Value)
}

func (q *queue[T]) push(w *Waiter[T]) {
	w.queue, w.prev = q, q.last
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
	q.size++
	if w.once {
		q.once++
	}
}

func (q *queue[T]) unlink(w *Waiter[T]) {
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
	if w.once {
		q.once--
	}
}
