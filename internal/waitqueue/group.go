package waitqueue

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/signals"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// AtOnce is returned by the Read of an attempt to begin the next attempt at once. Calls of Try join that attempt.
const AtOnce time.Duration = -1

// Attempt is a call on behalf of a batch.
type Attempt struct {
	Call calls.Call

	// Read ends the attempt with the reply: it marks waiters with Grant or Fail, in any order. Unmarked waiters stay in
	// the queue. again is the time after which another attempt may succeed without a message, AtOnce, or 0 if that is
	// unknown. An error fails every unmarked waiter. If Read ends its goroutine, the marks made so far count.
	//
	// If Read is nil, nothing is sent, and Again is its result.
	Read  func(r redisconn.Reply) (again time.Duration, err error)
	Again time.Duration
}

// Config configures a Group. Submit, Build, MaxBatch and Poll are required; the hooks may be nil. All
// functions run one at a time per key and must not block. Only Submit may be called under the lock of the Group.
type Config[K comparable, T any] struct {
	// Submit queues a call for the node of a key; see [calls.Sender.Submit].
	Submit func(user context.Context, j *calls.Job, c calls.Caller, key K)

	// Build begins an attempt. It may mark waiters too.
	Build func(key K, batch []*Waiter[T]) Attempt

	// Gather, if it is set, returns how many callers are about to come. An attempt that begins waits for them, for at
	// most calls.Patience.
	Gather func(key K) int

	// Behind, if it is set, reports whether a call that takes the Next of the key along is about to be built. An
	// attempt for waiters that were not served before then leaves itself to that call, because behind it more may be
	// free. It does so once, and for 2 ms at most.
	Behind func(key K) bool

	// MaxBatch is the maximum number of waiters in an attempt.
	MaxBatch int

	// Poll is the longest pause between two attempts while a caller waits. Each pause is random, from a fifth of
	// Poll to the whole.
	Poll time.Duration

	// Second begins an attempt also when a caller arrives behind one that waits, for servers that must know whether
	// more than one waits. Others that arrive while some wait for a later attempt only wait behind them.
	Second bool

	// Workers run hooks that must not run under the locks of a caller. Nil: new goroutines.
	Workers *gate.Workers

	// Listen is called when a caller has to wait. From then on wake must be called whenever an attempt may succeed,
	// until stop is called. With in = 0 the next attempt begins at once, otherwise after that time or the poll
	// interval, whichever is shorter, in place of the time that the last attempt returned. See [pubsub.Listen].
	Listen func(key K, wake func(in time.Duration)) (stop func())

	// Listens, if it is set, reports whether Listen would hear all messages from the start. Then Listen is called
	// before the first attempt.
	Listens func(key K) bool

	// GiveBack receives grants whose waiters have left, and starts their return to the server. The next attempt
	// follows.
	GiveBack func(key K, granted []T)

	// Leave receives waiters that were part of an attempt and have left without a grant, for servers that remember
	// waiters.
	Leave func(key K, left []T)
}

// Group is a set of queues, one for each key in use. It is safe for concurrent use.
type Group[K comparable, T any] struct {
	wheel *wheel.Wheel
	cfg   Config[K, T]
	gate  gate.Gate // counts running queues

	// mu guards the map, all queues and all waiters, except that Value and the verdict of a waiter in flight belong to
	// its attempt. No hook runs under mu. A queue is in the map while it has a waiter or is running. A waiter is
	// linked until it is settled. A waiter that is cancelled in flight is unlinked at once, and finishAttempt handles
	// its verdict.
	mu     sync.Mutex
	queues map[K]*queue[K, T]
	size   int   // waiters of all queues
	closed error // the reason given to Close
}

// New returns a Group without queues. It panics if a required field of cfg is missing.
func New[K comparable, T any](w *wheel.Wheel, cfg Config[K, T]) *Group[K, T] {
	if w == nil || cfg.Submit == nil || cfg.Build == nil || cfg.MaxBatch < 1 || cfg.Poll <= 0 {
		panic(fmt.Sprintf("waitqueue: a required function is nil, or MaxBatch %d or Poll %v out of range",
			cfg.MaxBatch, cfg.Poll))
	}
	return &Group[K, T]{wheel: w, cfg: cfg, queues: make(map[K]*queue[K, T])}
}

// Wait queues v under the key and blocks until an attempt has granted or failed it, ctx ends, or the Group is
// closed. It returns v as the attempt left it. After an error nothing is granted: a late grant goes to GiveBack. If
// ctx has ended before the call, no attempt is made.
//
// The first attempt may run on the goroutine of the caller. Close does not interrupt it if ctx cannot end.
func (g *Group[K, T]) Wait(ctx context.Context, key K, v T) (T, error) {
	return g.wait(ctx, key, &Waiter[T]{Value: v, ctx: ctx})
}

// Try is Wait for at most one attempt: unless the next attempt grants v, Try fails with a *NotServedError. It does
// not overtake: while others wait for a later attempt, it fails at once.
func (g *Group[K, T]) Try(ctx context.Context, key K, v T) (T, error) {
	return g.wait(ctx, key, &Waiter[T]{Value: v, ctx: ctx, once: true})
}

func (g *Group[K, T]) wait(ctx context.Context, key K, w *Waiter[T]) (v T, err error) {
	if err := ctx.Err(); err != nil {
		return v, err
	}
	w.done = make(chan T, 1)
	told := false
	defer func() {
		if !told { // also if a hook of the redis client has ended the goroutine
			g.leave(key, w)
		}
	}()
	if err = g.add(ctx, key, w); err != nil {
		told = true
		return v, err
	}
	select {
	case v = <-w.done:
		told = true
		return v, w.err
	case <-ctx.Done():
		return v, ctx.Err()
	}
}

// leave removes the waiter of a caller that has left from its queue.
func (g *Group[K, T]) leave(key K, w *Waiter[T]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !w.settled {
		g.removeLocked(g.queues[key], w)
	} else if w.err == nil { // granted in the same instant
		q := g.queueLocked(key)
		q.back = append(q.back, w.Value)
		g.wakeLocked(q)
	}
}

// Stay is Wait for a caller that may leave while v stays in the queue. wait returns true when it has received from
// done, or false to leave. Then told is false, and the function that leaving returns receives the outcome, on a new
// goroutine.
func (g *Group[K, T]) Stay(
	ctx context.Context, key K, v T, wait func(done <-chan T) bool, leaving func() func(T, error),
) (told bool, err error) {
	w := &Waiter[T]{Value: v, ctx: ctx, done: make(chan T, 1)}
	defer func() {
		if !told { // also if a hook of the redis client has ended the goroutine
			g.stayFor(w, leaving())
		}
	}()
	if err = g.add(ctx, key, w); err != nil {
		told = true
		return told, err
	}
	if told = wait(w.done); told {
		err = w.err
	}
	return told, err
}

// stayFor passes the outcome of a waiter whose caller has left to f.
func (g *Group[K, T]) stayFor(w *Waiter[T], f func(T, error)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.f = f; w.settled {
		w.tellLocked(w.Value)
	}
}

// WaitFunc is Wait without a blocked goroutine: it returns at once, and f is called on a new goroutine with the
// results of Wait. f is called exactly once, unless cancel returns true.
func (g *Group[K, T]) WaitFunc(ctx context.Context, key K, v T, f func(T, error)) (cancel func() bool) {
	return g.waitFunc(ctx, key, &Waiter[T]{Value: v, ctx: ctx, f: f})
}

// TryFunc is Try without a blocked goroutine; see WaitFunc.
func (g *Group[K, T]) TryFunc(ctx context.Context, key K, v T, f func(T, error)) (cancel func() bool) {
	return g.waitFunc(ctx, key, &Waiter[T]{Value: v, ctx: ctx, f: f, once: true})
}

func (g *Group[K, T]) waitFunc(ctx context.Context, key K, w *Waiter[T]) (cancel func() bool) {
	f := w.f
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
		err = g.add(calls.Nobody, key, w)
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

// Kick begins an attempt for the key if it has waiters. Any number of Kicks during an attempt cause one more. Kick
// does not block.
func (g *Group[K, T]) Kick(key K) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if q := g.queues[key]; q != nil {
		q.attemptDue = true
		g.wakeLocked(q)
	}
}

// Next returns the next attempt for the key, for another call to take along, or nil if nobody waits or an attempt is in
// flight.
func (g *Group[K, T]) Next(key K) (next *calls.Job) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if q := g.queues[key]; q != nil && !q.running {
		g.startLocked(q)
		q.mayYield = false
		next = q.job.For(q)
	}
	return next
}

// Unbuilt reports whether an attempt for the key was submitted and is not built yet.
func (g *Group[K, T]) Unbuilt(key K) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	q := g.queues[key]
	return q != nil && q.unbuilt
}

// wake is the argument of Listen.
func (g *Group[K, T]) wake(q *queue[K, T], in time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.queues[q.key] != q {
		return
	}
	if in <= 0 {
		q.attemptDue = true
		g.wakeLocked(q)
		return
	}
	now := g.wheel.Now()
	due := now.Add(g.pause(in))
	if q.running {
		q.latest = due
		return
	}
	if q.due.Sub(now) <= yieldFor {
		return // an attempt follows before, which may have yielded
	}
	q.due = due
	if err := q.scheduleLocked(max(due.Sub(now), 0)); err != nil {
		q.failAllLocked(err)
		g.wakeLocked(q)
	}
}

// Handoff grants the first waiter that is not in flight without an attempt, and reports whether there is one. give
// sets the value of the waiter. It runs under the lock of the Group and must not block.
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

// First returns the Value of the first waiter of the key, if there is one. Use it only if attempts leave Values
// unchanged.
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

// Line describes the waiters of one key.
type Line[T any] struct {
	Size  int
	First *T // Value of the waiter that came first; read only fields that attempts leave unchanged
}

// Lines yields the keys with waiters. It holds no lock for long, and may miss a key whose waiters come or go
// meanwhile.
func (g *Group[K, T]) Lines() iter.Seq2[K, Line[T]] {
	type keyed struct {
		key  K
		line Line[T]
	}
	view := func(key K, q *queue[K, T]) keyed {
		if q.first == nil {
			return keyed{key: key}
		}
		return keyed{key, Line[T]{q.size, &q.first.Value}}
	}
	return func(yield func(K, Line[T]) bool) {
		for q := range signals.InPieces(&g.mu, g.queues, view) {
			if q.line.Size > 0 && !yield(q.key, q.line) {
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

// Close fails all waiters and all later calls with reason, and waits for attempts and hooks in flight until ctx ends.
// Late grants go to GiveBack. A second Close keeps the first reason.
func (g *Group[K, T]) Close(ctx context.Context, reason error) error {
	g.Refuse(reason)
	return g.gate.Wait(ctx)
}

// Refuse is Close without the wait.
func (g *Group[K, T]) Refuse(reason error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == nil {
		g.closed = reason
		for _, q := range g.queues {
			q.failAllLocked(reason)
			g.wakeLocked(q)
		}
	}
}

// add queues a waiter, and sends an attempt unless one is in flight.
func (g *Group[K, T]) add(user context.Context, key K, w *Waiter[T]) error {
	g.mu.Lock()
	q, err := g.addLocked(key, w)
	g.mu.Unlock()
	if q != nil {
		g.cfg.Submit(user, &q.job, q, key)
	}
	return err
}

// addLocked queues a waiter. It returns the queue if the caller must send an attempt.
func (g *Group[K, T]) addLocked(key K, w *Waiter[T]) (*queue[K, T], error) {
	if g.closed != nil {
		return nil, g.closed
	}
	q := g.queueLocked(key)
	if w.once && q.size > 0 && !q.running {
		return nil, &NotServedError{Again: max(q.due.Sub(g.wheel.Now()), 0)}
	}
	if q.size == 0 || q.size == 1 && g.cfg.Second {
		q.attemptDue = true
	}
	q.pushLocked(w)
	if !q.hasWorkLocked() {
		return nil, nil
	}
	g.startLocked(q)
	q.unbuilt = true
	return q, nil
}

// queueLocked returns the queue of a key, and makes it if there is none.
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
		q.attemptDue = true // the next waiter may need less
	}
	q.unlinkLocked(w)
	w.settled = true
	switch {
	case w.inFlight: // finishAttempt handles it
		q.wanted--
	case w.seen && g.cfg.Leave != nil:
		q.left = append(q.left, w.Value)
	}
	g.wakeLocked(q)
}

// wakeLocked runs the queue if it has work.
func (g *Group[K, T]) wakeLocked(q *queue[K, T]) {
	switch {
	case !q.hasWorkLocked():
	case q.asksLocked():
		g.startLocked(q)
		q.unbuilt = true
		g.cfg.Submit(calls.Nobody, &q.job, q, q.key)
	default: // hooks must not run under mu
		g.startLocked(q)
		g.cfg.Workers.Go(q.run)
	}
}

// startLocked marks a queue as running.
func (g *Group[K, T]) startLocked(q *queue[K, T]) {
	q.running = true
	g.gate.EnterInside()
}

// pause returns the time until the next attempt: again, but at most the random poll interval. u is uniform in [0,1).
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
