package waitqueue

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/signals"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Config says what a Group does. Attempt, MaxBatch and Poll are required; the hooks may be nil. All functions
// run without a lock held, one at a time per key, on the goroutine of the queue; the first Attempt may run on
// the goroutine of a caller. They may block on the network; Begin does until ended is closed at most.
type Config[K comparable, T any] struct {
	// Attempt asks the server for the front of the queue. It marks waiters with Grant or Fail, in any order;
	// unmarked waiters stay in the queue. again is the time until something may have changed by itself for
	// those; 0 stands for unknown. An error fails every unmarked waiter.
	Attempt func(key K, batch []*Waiter[T]) (again time.Duration, err error)

	// Begin, if not nil, sends what Attempt would send first, and waits until that is answered or ended is
	// closed. It reports whether Attempt, which follows in any case, can now do without the network. So a caller
	// that may leave makes an attempt on its own goroutine too; if it leaves, another one goes on.
	Begin func(key K, batch []*Waiter[T], ended <-chan struct{}) (answered bool)

	// MaxBatch is how many waiters one attempt gets at most.
	MaxBatch int

	// Poll is the longest pause between two attempts while a caller waits, whether a message came or not.
	// Each pause is drawn at random from a fifth of it to the whole.
	Poll time.Duration

	// Eager makes every arrival a reason for an attempt. Otherwise a caller that arrives while others wait
	// for a later attempt waits behind them.
	Eager bool

	// Workers run the queues. Nil stands for new goroutines.
	Workers *gate.Workers

	// Listen is called when a caller has to wait. It arranges for kick to be called whenever an attempt may
	// succeed, and returns the function that ends this. See [Listener].
	Listen func(key K, kick func()) (stop func())

	// GiveBack gets the grants whose waiters had gone when they came, and returns them to the server. The
	// next attempt follows.
	GiveBack func(key K, granted []T)

	// Leave gets the waiters that were part of an attempt and have gone ungranted, for servers that remember
	// waiters.
	Leave func(key K, left []T)
}

// Group is a set of queues, one for each key in use. It is safe for concurrent use.
type Group[K comparable, T any] struct {
	wheel *wheel.Wheel
	cfg   Config[K, T]
	gate  gate.Gate // counts the goroutines of queues

	// mu guards the map, all queues and all waiters, except that Value and the verdict of a waiter in flight
	// belong to Attempt. No hook runs under mu. A queue is in the map exactly as long as it has a waiter or
	// is running. Only the goroutine that runs a queue calls hooks. A waiter is linked until it is settled; a
	// waiter that is cancelled in flight is unlinked at once and dealt with when the attempt returns.
	mu     sync.Mutex
	queues map[K]*queue[K, T]
	size   int   // waiters of all queues
	closed error // the reason given to Close
}

// New returns a Group without queues. It panics on a Config that cannot work.
func New[K comparable, T any](w *wheel.Wheel, cfg Config[K, T]) *Group[K, T] {
	if w == nil || cfg.Attempt == nil || cfg.MaxBatch < 1 || cfg.Poll <= 0 {
		panic(fmt.Sprintf("waitqueue: no wheel, no Attempt, or MaxBatch %d or Poll %v out of range",
			cfg.MaxBatch, cfg.Poll))
	}
	return &Group[K, T]{wheel: w, cfg: cfg, queues: make(map[K]*queue[K, T])}
}

// Wait queues v under the key and blocks until an attempt has granted or failed it, ctx ends, or the Group is
// closed. It returns v as the attempt left it. After an error nothing is granted: a grant that came too late
// goes to GiveBack. If ctx has ended before, the server is not asked.
//
// The caller makes the first attempt on its own goroutine if none is in flight, which saves switches of
// goroutines: if ctx cannot end, or as far as Begin allows. Close does not interrupt it.
func (g *Group[K, T]) Wait(ctx context.Context, key K, v T) (T, error) {
	return g.wait(ctx, key, &Waiter[T]{Value: v})
}

// Try is Wait for a caller that does not wait: unless the next attempt grants it, it fails with a
// *NotServedError. It does not overtake: while others wait for a later attempt, it fails at once, unless the
// Group is eager.
func (g *Group[K, T]) Try(ctx context.Context, key K, v T) (T, error) {
	return g.wait(ctx, key, &Waiter[T]{Value: v, once: true})
}

func (g *Group[K, T]) wait(ctx context.Context, key K, w *Waiter[T]) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	if err := g.enter(key, w, ctx.Done()); err != nil {
		return none, err
	}
	select {
	case <-w.done:
		return w.Value, w.err
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !w.settled {
		g.removeLocked(g.queues[key], w)
	} else if w.err == nil { // granted in the same instant
		q := g.queueLocked(key)
		q.back = append(q.back, w.Value)
		g.wakeLocked(q)
	}
	return none, ctx.Err()
}

// Stay is Wait for a caller that may leave when ended is closed, but whose v stays in the queue then. done
// receives when v was granted or failed; after that, result returns what Wait would have returned. Stay returns
// at once when ended is closed, and otherwise it may make an attempt before.
func (g *Group[K, T]) Stay(ended <-chan struct{}, key K, v T) (done <-chan struct{}, result func() (T, error)) {
	w := &Waiter[T]{Value: v}
	if err := g.enter(key, w, ended); err != nil {
		w.err = err
		w.done <- struct{}{}
	}
	return w.done, func() (T, error) { return w.Value, w.err }
}

// enter queues the waiter of a call that blocks. It leads the queue, until ended is closed, if that has to be run.
func (g *Group[K, T]) enter(key K, w *Waiter[T], ended <-chan struct{}) error {
	w.done = make(chan struct{}, 1)
	g.mu.Lock()
	q, err := g.addLocked(key, w)
	switch {
	case q == nil:
		g.mu.Unlock()
	case ended == nil:
		g.mu.Unlock()
		q.lead()
	case g.cfg.Begin != nil: // a queue that has to be run and has a waiter has to make an attempt
		batch := q.beginAttemptLocked(g.cfg.MaxBatch)
		g.mu.Unlock()
		q.leadUntil(ended, batch)
	default:
		g.mu.Unlock()
		g.cfg.Workers.Go(q.run)
	}
	return err
}

// WaitFunc is Wait without a goroutine: it returns at once, and f is called on a goroutine of its own with
// what Wait would have returned. f is called exactly once, unless cancel is called in time: cancel returns
// true if f will not be called.
func (g *Group[K, T]) WaitFunc(ctx context.Context, key K, v T, f func(T, error)) (cancel func() bool) {
	w := &Waiter[T]{Value: v, f: f}
	drop := func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		if w.settled {
			return false
		}
		g.removeLocked(g.queues[key], w)
		return true
	}
	err := ctx.Err()
	if err == nil {
		err = g.add(key, w)
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

// Kick says that an attempt for the key may succeed. It is a hint: it costs nothing for a key without
// waiters, and any number of hints during one attempt cause one more. It never blocks.
func (g *Group[K, T]) Kick(key K) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if q := g.queues[key]; q != nil {
		q.pollNeeded = true
		g.wakeLocked(q)
	}
}

// Handoff grants the first waiter that is not in flight without asking the server, if there is one. give sets
// the waiter's value. It runs under the Group's lock and must not block.
func (g *Group[K, T]) Handoff(key K, give func(*T)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	q := g.queues[key]
	if q == nil {
		return false
	}
	for w := q.first; w != nil; w = w.next {
		if !w.inFlight {
			give(&w.Value)
			q.settleLocked(w, nil)
			g.wakeLocked(q)
			return true
		}
	}
	return false
}

// First returns the Value of the first waiter of the key, if there is one. Use it only if Attempt leaves
// Values unchanged.
func (g *Group[K, T]) First(key K) (v T, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if q := g.queues[key]; q != nil && q.first != nil {
		return q.first.Value, true
	}
	return v, false
}

// Waiting returns the number of waiters of the key.
func (g *Group[K, T]) Waiting(key K) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if q := g.queues[key]; q != nil {
		return q.size
	}
	return 0
}

// Size returns the number of waiters of all keys. It is 0 after Close.
func (g *Group[K, T]) Size() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.size
}

// Sizes yields the keys that have waiters, and how many. It holds no lock for long; a key whose waiters come
// or go meanwhile may be left out.
func (g *Group[K, T]) Sizes() iter.Seq2[K, int] {
	type sized struct {
		key  K
		size int
	}
	view := func(key K, q *queue[K, T]) sized { return sized{key, q.size} }
	return func(yield func(K, int) bool) {
		for q := range signals.InPieces(&g.mu, g.queues, view) {
			if q.size > 0 && !yield(q.key, q.size) {
				return
			}
		}
	}
}

// Len returns the number of keys in use.
func (g *Group[K, T]) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.queues)
}

// Close fails every waiter, and every later one, with reason. It waits for attempts and hooks in flight until
// ctx ends. Grants that come meanwhile go to GiveBack. Closing again keeps the first reason.
func (g *Group[K, T]) Close(ctx context.Context, reason error) error {
	g.mu.Lock()
	if g.closed == nil {
		g.closed = reason
		for _, q := range g.queues {
			q.failAllLocked(reason)
			g.wakeLocked(q)
		}
	}
	g.mu.Unlock()
	return g.gate.Wait(ctx)
}

// add queues a waiter, and runs the queue if that has to be run.
func (g *Group[K, T]) add(key K, w *Waiter[T]) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	q, err := g.addLocked(key, w)
	if q != nil {
		g.cfg.Workers.Go(q.run)
	}
	return err
}

// addLocked queues a waiter. It returns the queue if the caller has to run it.
func (g *Group[K, T]) addLocked(key K, w *Waiter[T]) (*queue[K, T], error) {
	if g.closed != nil {
		return nil, g.closed
	}
	q := g.queueLocked(key)
	if w.once && !g.cfg.Eager && q.size > 0 && !q.running {
		return nil, &NotServedError{Again: max(q.due.Sub(g.wheel.Now()), 0)}
	}
	if q.size == 0 || g.cfg.Eager {
		q.pollNeeded = true
	}
	q.pushLocked(w)
	if !q.hasWorkLocked() {
		return nil, nil
	}
	g.startLocked(q)
	return q, nil
}

// queueLocked returns the queue of a key, a new one if there is none.
func (g *Group[K, T]) queueLocked(key K) *queue[K, T] {
	q := g.queues[key]
	if q == nil {
		q = &queue[K, T]{group: g, key: key}
		g.queues[key] = q
	}
	return q
}

// failLocked ends a waiter with an error.
func (g *Group[K, T]) failLocked(q *queue[K, T], w *Waiter[T], err error) {
	w.err = err
	g.removeLocked(q, w)
	var none T
	w.tellLocked(none)
}

// removeLocked takes a waiter that is not settled out of its queue.
func (g *Group[K, T]) removeLocked(q *queue[K, T], w *Waiter[T]) {
	if q.first == w {
		q.pollNeeded = true // what the next waiter wants may be there
	}
	q.unlinkLocked(w)
	w.settled = true
	switch {
	case w.inFlight: // decided when the attempt returns
		if w.left != nil {
			close(w.left)
		}
	case w.seen && g.cfg.Leave != nil:
		q.left = append(q.left, w.Value)
	}
	g.wakeLocked(q)
}

// wakeLocked starts the queue's goroutine if there is work for it.
func (g *Group[K, T]) wakeLocked(q *queue[K, T]) {
	if q.hasWorkLocked() {
		g.startLocked(q)
		g.cfg.Workers.Go(q.run)
	}
}

// startLocked counts a goroutine that is about to run the queue.
func (g *Group[K, T]) startLocked(q *queue[K, T]) {
	q.running = true
	g.gate.EnterInside()
}

// pause returns the time until the next attempt: what the last one said, at most a poll interval. u is
// uniform in [0,1).
func pause(again, poll time.Duration, u float64) time.Duration {
	longest := poll/5 + time.Duration(u*float64(poll-poll/5))
	if again > 0 {
		return min(again, longest)
	}
	return longest
}

func (g *Group[K, T]) pause(again time.Duration) time.Duration {
	return pause(again, g.cfg.Poll, rand.Float64())
}
