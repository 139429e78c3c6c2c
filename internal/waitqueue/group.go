package waitqueue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// Config says what a Group does. Attempt, MaxBatch and Poll are required; the hooks may be nil. All of them run on
// the queue's own goroutine, the first one perhaps on a caller's, one at a time per name and without any lock held, so they may block on the network.
type Config[T any] struct {
	// Attempt asks for the front of the queue in one go. It marks waiters with Grant or Fail, in any order; those that it
	// does not mark stay where they are. If there are such, again is the time until something may have
	// changed by itself; 0 stands for unknown. An error fails every waiter that was not marked.
	Attempt func(name string, batch []*Waiter[T]) (again time.Duration, err error)

	// MaxBatch bounds what one attempt gets: 1 for a lock.
	MaxBatch int

	// Poll is the longest pause between two looks while somebody waits, whatever was or was not heard. Each pause is
	// drawn at random from a fifth of it to the whole.
	Poll time.Duration

	// Eager makes every arrival a reason to look. Otherwise whoever comes while others wait for a later look waits
	// behind them.
	Eager bool

	// Listen is called when somebody has to wait. It arranges that kick is called whenever a look may be worth
	// while, and returns what ends that. See [Hub].
	Listen func(name string, kick func()) (stop func())

	// GiveBack gets the grants whose waiters had gone when they came. It must return them to where they came
	// from. The next look follows.
	GiveBack func(name string, granted []T)

	// Leave gets the waiters that have gone ungranted after an attempt had seen them, for servers that
	// remember who waits.
	Leave func(name string, left []T)
}

// Group is a set of queues, one per name in use. It is safe for concurrent use.
//
// Ground rules. mu guards the map, all queues and all waiters, except that Value and the verdict of a waiter in flight belong
// to Attempt. No hook runs under mu. A queue is in the map exactly as long as somebody waits in it or it is running; only
// the goroutine that runs it calls hooks. A waiter is linked until it is settled; one that is cancelled in flight is unlinked at
// once and looked at again when the attempt returns.
type Group[T any] struct {
	wheel *wheel.Wheel
	cfg   Config[T]

	mu     sync.Mutex
	queues map[string]*queue[T]
	active int // goroutines
	closed error
	idle   chan struct{} // closed when closed and active is 0
}

// New returns a Group without queues. It panics on a Config that cannot work.
func New[T any](w *wheel.Wheel, cfg Config[T]) *Group[T] {
	if w == nil || cfg.Attempt == nil || cfg.MaxBatch < 1 || cfg.Poll <= 0 {
		panic(fmt.Sprintf("waitqueue: no wheel, no Attempt, MaxBatch %d or Poll %v out of range", cfg.MaxBatch, cfg.Poll))
	}
	return &Group[T]{wheel: w, cfg: cfg, queues: make(map[string]*queue[T]), idle: make(chan struct{})}
}

// Wait queues v under the name and blocks until an attempt has granted or failed it, ctx ends, or the Group is closed. It
// returns v as the attempt left it. After an error nothing is granted: a grant that came too late goes to GiveBack.
// If ctx has ended before, nothing is asked. A caller whose ctx cannot end makes the first attempt himself if nobody else is at
// work: he saves two changes of goroutine, and then Close does not let him go before that attempt is over.
func (g *Group[T]) Wait(ctx context.Context, name string, v T) (T, error) {
	return g.wait(ctx, name, &Waiter[T]{Value: v})
}

// Try is Wait for one who does not wait: unless it is granted by the next attempt, it fails with a *NotServedError. It does not
// overtake: while others wait for a later look, it fails at once (unless the Group is eager).
func (g *Group[T]) Try(ctx context.Context, name string, v T) (T, error) {
	return g.wait(ctx, name, &Waiter[T]{Value: v, once: true})
}

func (g *Group[T]) wait(ctx context.Context, name string, w *Waiter[T]) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	w.done = make(chan struct{}, 1)
	q, err := g.add(name, w, ctx.Done() == nil)
	if err != nil {
		return none, err
	}
	if q != nil {
		q.lead()
	}
	select {
	case <-w.done:
		return w.Value, w.err
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !w.settled {
		g.remove(w)
	} else if w.err == nil { // granted in the same instant
		q := g.queue(name)
		q.back = append(q.back, w.Value)
		g.wake(q)
	}
	return none, ctx.Err()
}

// WaitFunc is Wait without a goroutine: it returns at once and f is called on a goroutine of its own with what Wait
// would have returned. It is called exactly once, unless cancel is called in time: cancel returns true if f will not run.
func (g *Group[T]) WaitFunc(ctx context.Context, name string, v T, f func(T, error)) (cancel func() bool) {
	w := &Waiter[T]{Value: v, f: f}
	drop := func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		if w.settled {
			return false
		}
		g.remove(w)
		return true
	}
	err := ctx.Err()
	if err == nil {
		_, err = g.add(name, w, false)
	}
	if err != nil {
		var none T
		go f(none, err)
		return func() bool { return false }
	}
	stop := context.AfterFunc(ctx, func() {
		if drop() {
			var none T
			f(none, ctx.Err())
		}
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.settled {
		stop()
	} else {
		w.stop = stop
	}
	return func() bool {
		if !drop() {
			return false
		}
		stop()
		return true
	}
}

// Kick says that a look at the name may be worth while. It is a hint: it costs nothing where nobody waits, and any number of
// them during one attempt cause one more. It never blocks.
func (g *Group[T]) Kick(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if q := g.queues[name]; q != nil {
		q.look = true
		g.wake(q)
	}
}

// Handoff grants the first waiter that is not part of an attempt under way without asking anybody, if there is one. give runs
// under the Group's lock, to set the waiter's value: it must not block.
func (g *Group[T]) Handoff(name string, give func(*T)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	q := g.queues[name]
	if q == nil {
		return false
	}
	for w := q.first; w != nil; w = w.next {
		if !w.inFlight {
			give(&w.Value)
			q.settle(w, nil)
			g.wake(q)
			return true
		}
	}
	return false
}

// First returns the Value of the first waiter under the name, if there is one. It is for Configs whose Attempt leaves Value as it is.
func (g *Group[T]) First(name string) (v T, waits bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if q := g.queues[name]; q != nil && q.first != nil {
		return q.first.Value, true
	}
	return v, false
}

// Waiting is the number of waiters under the name.
func (g *Group[T]) Waiting(name string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if q := g.queues[name]; q != nil {
		return q.size
	}
	return 0
}

// Len is the number of names in use.
func (g *Group[T]) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.queues)
}

// Close fails every waiter, and all that come later, with reason, and waits for attempts and hooks under way until ctx
// ends. Grants that come meanwhile go to GiveBack. Closing again keeps the first reason.
func (g *Group[T]) Close(ctx context.Context, reason error) error {
	g.mu.Lock()
	if g.closed == nil {
		g.closed = reason
		for _, q := range g.queues {
			for q.first != nil {
				g.fail(q.first, reason)
			}
			g.wake(q)
		}
		g.endIfIdle()
	}
	g.mu.Unlock()
	select {
	case <-g.idle:
		return nil
	default:
	}
	select {
	case <-g.idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// add queues a waiter. If there is work to do, nobody does it, and the caller is willing to lead, it returns the queue for that.
func (g *Group[T]) add(name string, w *Waiter[T], lead bool) (*queue[T], error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != nil {
		return nil, g.closed
	}
	q := g.queue(name)
	if w.once && !g.cfg.Eager && q.size > 0 && !q.running {
		return nil, &NotServedError{Again: max(time.Until(q.due), 0)}
	}
	if q.size == 0 || g.cfg.Eager {
		q.look = true
	}
	q.push(w)
	if !q.idleWithWork() {
		return nil, nil
	}
	g.start(q)
	if lead {
		return q, nil
	}
	go q.run()
	return nil, nil
}

// queue returns the queue of a name, a new one if there is none. mu is held.
func (g *Group[T]) queue(name string) *queue[T] {
	q := g.queues[name]
	if q == nil {
		q = &queue[T]{group: g, name: name}
		g.queues[name] = q
	}
	return q
}

// fail removes a waiter and tells it why. mu is held.
func (g *Group[T]) fail(w *Waiter[T], err error) {
	w.err = err
	g.remove(w)
	var none T
	w.tell(none)
}

// remove takes out a waiter that is not settled. mu is held.
func (g *Group[T]) remove(w *Waiter[T]) {
	q := w.queue
	if q.first == w {
		q.look = true // what the next one wants may be there
	}
	q.unlink(w)
	w.settled = true
	switch {
	case w.inFlight: // decided when the attempt returns
		if w.left != nil {
			close(w.left)
		}
	case w.seen && g.cfg.Leave != nil:
		q.left = append(q.left, w.Value)
	}
	g.wake(q)
}

// wake starts the queue's goroutine if there is work for it. mu is held.
func (g *Group[T]) wake(q *queue[T]) {
	if q.idleWithWork() {
		g.start(q)
		go q.run()
	}
}

// start accounts for a goroutine that is about to work. mu is held.
func (g *Group[T]) start(q *queue[T]) {
	q.running = true
	g.active++
}

// leave accounts for the end of a goroutine. mu is held.
func (g *Group[T]) leave() {
	g.active--
	g.endIfIdle()
}

func (g *Group[T]) endIfIdle() {
	if g.closed == nil || g.active > 0 {
		return
	}
	select {
	case <-g.idle: // a grant given back after Close had its own goroutine
	default:
		close(g.idle)
	}
}

// pause is the time until the next look: what the attempt said, at most a poll interval. u is uniform in [0,1).
func pause(again, poll time.Duration, u float64) time.Duration {
	longest := poll/5 + time.Duration(u*float64(poll-poll/5))
	if again > 0 {
		return min(again, longest)
	}
	return longest
}

func (g *Group[T]) pause(again time.Duration) time.Duration {
	return pause(again, g.cfg.Poll, rand.Float64())
}
