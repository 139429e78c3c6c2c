// Package cleanup releases, in the background, what may be left in Redis and has no holder any more.
//
// A release that fails is sent again until what it is about has ended by itself. If a request for it was
// never answered, the release is also sent again after it has succeeded, because a copy of that request may
// still be under way.
package cleanup

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/joined"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	// LateCopy is when a release is repeated for the first time because an unanswered request may take effect
	// after it: by then the server, which has answered since, has read what was in its sockets. A copy may be
	// later still, held up by the network, so the pause before each further release is twice as long as the
	// one before.
	LateCopy = time.Second

	// longestDelay is how long a copy of an unanswered request may be under way, at least. As long as releases
	// are not answered either, that time begins anew: a server that hangs has yet to read its sockets.
	longestDelay = 15 * time.Second

	// mostInOutages is with how many releases pending that time begins anew. In a long outage there may be a
	// request for each try of each waiter.
	mostInOutages = 1 << 16

	firstPause   = 250 * time.Millisecond // after a failure; doubled up to longestPause
	longestPause = 5 * time.Second

	closeTries = 3
)

// Config says how a Queue sends releases of type T.
type Config[T any] struct {
	Wheel *wheel.Wheel
	Gate  *gate.Gate // held while releases are under way

	// Send sends releases and calls done once for each, with its index and why it failed, or nil. It may
	// return before they are answered. ctx ends only while the Queue is being closed; otherwise the calls end
	// by timeouts of their own.
	Send func(ctx context.Context, releases []T, done func(i int, err error))

	// MaxBatch is how many releases one Send gets at most. One Send runs at a time.
	MaxBatch int

	// Refused is told of a release that Redis refused for good.
	Refused func(release T, err error)
}

// Queue sends the releases of one Client. It is safe for concurrent use.
type Queue[T any] struct {
	Config[T]

	// mu guards the fields below it. While something is pending and no Send runs, there is a wheel entry for
	// what is due first.
	mu      sync.Mutex
	pending pending[T]
	timer   wheel.Timer
	sending bool
	closed  bool
}

// New returns a Queue. It starts nothing.
func New[T any](config Config[T]) *Queue[T] { return &Queue[T]{Config: config} }

// Add sends a release after a delay. What it is about ends by itself when the time given has passed.
// ambiguous says that a copy of a request for it may still be under way.
func (q *Queue[T]) Add(release T, delay, lasts time.Duration, ambiguous bool) {
	now := q.Wheel.Now()
	e := entry[T]{release: release, due: now.Add(delay), pause: firstPause}
	if ambiguous {
		lasts = max(lasts, longestDelay)
		e.copy = LateCopy
	}
	e.lasts, e.until = lasts, now.Add(lasts)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pushLocked(e)
}

// pushLocked enters what is to be sent.
func (q *Queue[T]) pushLocked(e entry[T]) {
	heap.Push(&q.pending, e)
	if q.sending || q.closed {
		return
	}
	// The timer is not pending where the wheel had no room for it.
	if first := q.pending[0].due; first == e.due || !q.timer.Pending() {
		q.armLocked()
	}
}

// armLocked has what is due sent, now or on the wheel.
func (q *Queue[T]) armLocked() {
	if len(q.pending) == 0 || q.closed {
		return
	}
	q.timer.Stop()
	left := q.pending[0].due.Sub(q.Wheel.Now())
	if left <= 0 {
		q.startLocked()
		return
	}
	// If the wheel is full, the release waits for the next one; if it is stopped, for Close.
	q.timer, _ = wheelentry.AfterFunc(q.Wheel, left, func(stopped error) {
		if stopped != nil {
			return
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		q.startLocked()
	})
}

// startLocked starts to send unless that runs already. If the gate is closed, Close sends what is pending.
func (q *Queue[T]) startLocked() {
	if q.sending || q.closed || !q.Gate.Enter() {
		return
	}
	q.sending = true
	go q.work()
}

// work sends what is due until nothing is.
func (q *Queue[T]) work() {
	defer q.Gate.Leave()
	for {
		q.mu.Lock()
		batch := q.takeLocked(q.Wheel.Now())
		if len(batch) == 0 {
			q.sending = false
			q.armLocked()
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		for range batch {
			q.Gate.EnterInside()
		}
		q.Send(context.Background(), releases(batch), func(i int, err error) {
			defer q.Gate.Leave()
			q.answered(batch[i], err)
		})
	}
}

// takeLocked removes up to a batch of what is due, less what has ended by itself.
func (q *Queue[T]) takeLocked(now time.Time) (batch []entry[T]) {
	for len(q.pending) > 0 && len(batch) < q.MaxBatch && !q.pending[0].due.After(now) {
		if e := heap.Pop(&q.pending).(entry[T]); !now.After(e.until) {
			batch = append(batch, e)
		}
	}
	return batch
}

// answered decides whether a release is sent again.
func (q *Queue[T]) answered(e entry[T], err error) {
	now, unanswered := q.Wheel.Now(), false
	switch {
	case err != nil && redisconn.Permanent(err):
		q.Refused(e.release, err)
		return
	case err != nil:
		e.due, e.pause = now.Add(e.pause), min(2*e.pause, longestPause)
		unanswered = e.copy > 0
	case e.copy > 0:
		e.due, e.copy = now.Add(e.copy), 2*e.copy
	default:
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if unanswered && len(q.pending) < mostInOutages {
		e.until = now.Add(e.lasts)
	}
	q.pushLocked(e)
}

// Close sends everything that is pending, due or not, and drops what fails. It returns how many releases
// failed and why. The gate must be closed, with nothing under way behind it.
func (q *Queue[T]) Close(ctx context.Context) (failed int, err error) {
	q.mu.Lock()
	q.closed = true
	q.timer.Stop()
	pending := q.pending
	q.pending = nil
	q.mu.Unlock()
	for len(pending) > 0 {
		var batch []entry[T]
		now := q.Wheel.Now() // what ends while Redis hangs is not sent any more
		for len(pending) > 0 && len(batch) < q.MaxBatch {
			last := len(pending) - 1
			if e := pending[last]; !now.After(e.until) {
				batch = append(batch, e)
			}
			pending = pending[:last]
		}
		left, failure := q.sendLast(ctx, batch)
		if failed += left; failure != nil {
			err = failure
		}
	}
	return failed, err
}

// sendLast sends a batch, again in case a node has just been replaced, and returns how many failed.
func (q *Queue[T]) sendLast(ctx context.Context, batch []entry[T]) (failed int, err error) {
	for try := 0; try < closeTries && len(batch) > 0; try++ {
		if try > 0 && q.Wheel.Sleep(ctx, firstPause) != nil {
			break
		}
		if ctx.Err() != nil {
			return len(batch), ctx.Err()
		}
		errs := make([]error, len(batch))
		var sent sync.WaitGroup
		sent.Add(len(batch))
		q.Send(ctx, releases(batch), func(i int, err error) {
			errs[i] = err
			sent.Done()
		})
		sent.Wait()
		var again []entry[T]
		for i, failure := range errs {
			switch {
			case failure != nil && redisconn.Permanent(failure):
				q.Refused(batch[i].release, failure)
			case failure != nil:
				again, err = append(again, batch[i]), failure
			}
		}
		batch = again
	}
	if len(batch) == 0 {
		return 0, nil
	}
	return len(batch), joined.Errors(err, ended(ctx))
}

// ended is ctx's error, also in the instant between its deadline and the news of it: a connection that has
// the same deadline may be first to report.
func ended(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && ctx.Err() == nil && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// entry is a release that is to be sent.
type entry[T any] struct {
	release T
	due     time.Time
	until   time.Time     // by then it has ended by itself
	lasts   time.Duration // the time to then, which begins anew in an outage
	pause   time.Duration // before the next attempt after a failure
	copy    time.Duration // before the release that follows one that succeeds; 0: none follows
}

func releases[T any](batch []entry[T]) []T {
	all := make([]T, len(batch))
	for i, e := range batch {
		all[i] = e.release
	}
	return all
}

// pending is a heap, with what is due first on top: after an outage there may be as many releases as there
// were holds.
type pending[T any] []entry[T]

func (p pending[T]) Len() int           { return len(p) }
func (p pending[T]) Less(i, j int) bool { return p[i].due.Before(p[j].due) }
func (p pending[T]) Swap(i, j int)      { p[i], p[j] = p[j], p[i] }

func (p *pending[T]) Push(x any) { *p = append(*p, x.(entry[T])) }

func (p *pending[T]) Pop() any {
	last := len(*p) - 1
	e := (*p)[last]
	(*p)[last] = entry[T]{}
	*p = (*p)[:last]
	return e
}
