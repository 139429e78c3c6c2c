// Package cleanup sends releases of abandoned holds in the background.
//
// A failed release is retried until the hold has expired. If a request for the hold was never answered, the release
// is sent again after it has succeeded, because the network may deliver a late duplicate of that request.
package cleanup

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	// LateCopy is the pause after which a successful release is sent again if a request for its hold was never
	// answered. By then the server, which has answered the release, has read its sockets. The network may hold a
	// duplicate back for longer, so each further pause is twice as long as the one before.
	LateCopy = time.Second

	// longestDelay is the shortest time for which late duplicates of an unanswered request are expected. It is extended
	// while releases are not answered either: a server that hangs has not read its sockets yet.
	longestDelay = 15 * time.Second

	// maxPendingForExtension is the number of pending releases beyond which that time is not extended. A long outage
	// may leave a request for each try of each waiter.
	maxPendingForExtension = 1 << 16

	firstPause   = 250 * time.Millisecond // after a failure; doubled up to longestPause
	longestPause = 5 * time.Second

	closeTries = 3
)

// Config configures a Queue of releases of type T.
type Config[T any] struct {
	Wheel *wheel.Wheel
	Gate  *gate.Gate // counts releases in flight

	// Send sends releases, and calls done once for each with its index and its error or nil. It may return before the
	// replies. ctx ends only during Close; otherwise the calls end by their own timeouts.
	Send func(ctx context.Context, releases []T, done func(i int, err error))

	// MaxBatch is the maximum number of releases for one Send. One Send runs at a time.
	MaxBatch int

	// Refused is called for a release that fails permanently.
	Refused func(release T, err error)

	// Failed is called for the error of each other release that fails. It must not block.
	Failed func(err error)
}

// Queue sends the releases of one Client. It is safe for concurrent use.
type Queue[T any] struct {
	Config[T]

	// mu guards the fields below. While releases are pending and no Send runs, a wheel entry waits for the first of
	// them.
	mu      sync.Mutex
	pending pending[T]
	stop    func() bool // stops the wheel entry; nil if there is none
	sending bool
	closed  bool
}

// New returns a Queue. It starts nothing.
func New[T any](config Config[T]) *Queue[T] { return &Queue[T]{Config: config} }

// Add sends a release after a delay. lasts is the time until the hold expires. If ambiguous is true, a late
// duplicate of a request for the hold may follow.
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

// pushLocked adds a release.
func (q *Queue[T]) pushLocked(e entry[T]) {
	heap.Push(&q.pending, e)
	if q.sending || q.closed {
		return
	}
	if q.pending[0].due == e.due {
		q.armLocked()
	}
}

// armLocked starts to send the due releases, or schedules that on the wheel.
func (q *Queue[T]) armLocked() {
	if len(q.pending) == 0 || q.closed {
		return
	}
	q.disarmLocked()
	left := q.pending[0].due.Sub(q.Wheel.Now())
	if left <= 0 {
		q.startLocked()
		return
	}
	arm := func(error) {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.armLocked()
	}
	timer, err := wheelentry.AfterFunc(q.Wheel, left, arm)
	if q.stop = timer.Stop; err != nil {
		q.stop = time.AfterFunc(left, func() { arm(nil) }).Stop //nolint:forbidigo // the wheel is stopped
	}
}

func (q *Queue[T]) disarmLocked() {
	if q.stop != nil {
		q.stop()
	}
}

// startLocked starts work unless it runs. If the gate is closed, Close sends the pending releases.
func (q *Queue[T]) startLocked() {
	if q.sending || q.closed || !q.Gate.Enter() {
		return
	}
	q.sending = true
	go q.work()
}

// work sends due releases until there are none.
func (q *Queue[T]) work() {
	defer q.Gate.Leave()
	for {
		q.mu.Lock()
		batch := q.dueLocked(q.Wheel.Now())
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
			q.followUp(batch[i], err)
		})
	}
}

// dueLocked removes up to MaxBatch due releases and returns those whose holds have not expired.
func (q *Queue[T]) dueLocked(now time.Time) (batch []entry[T]) {
	for len(q.pending) > 0 && len(batch) < q.MaxBatch && !q.pending[0].due.After(now) {
		if e := heap.Pop(&q.pending).(entry[T]); !now.After(e.until) {
			batch = append(batch, e)
		}
	}
	return batch
}

// followUp decides whether to send a release again.
func (q *Queue[T]) followUp(e entry[T], err error) {
	now, unanswered := q.Wheel.Now(), false
	switch {
	case err != nil && redisconn.Permanent(err):
		q.Refused(e.release, err)
		return
	case err != nil:
		q.Failed(err)
		e.due, e.pause = now.Add(e.pause), min(2*e.pause, longestPause)
		unanswered = e.copy > 0
	case e.copy > 0:
		e.due, e.copy = now.Add(e.copy), 2*e.copy
	default:
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if unanswered && len(q.pending) < maxPendingForExtension {
		e.until = now.Add(e.lasts)
	}
	q.pushLocked(e)
}

// Close sends all pending releases, due or not, and drops those that fail. It returns their number and the last
// error. The gate must be closed and empty.
func (q *Queue[T]) Close(ctx context.Context) (failed int, err error) {
	q.mu.Lock()
	q.closed = true
	q.disarmLocked()
	pending := q.pending
	q.pending = nil
	q.mu.Unlock()
	for len(pending) > 0 {
		var batch []entry[T]
		now := q.Wheel.Now() // releases of holds that expire during a hang are dropped
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

// sendLast sends a batch, with retries in case a node has just been replaced, and returns how many failed.
func (q *Queue[T]) sendLast(ctx context.Context, batch []entry[T]) (failed int, err error) {
	for try := 0; try < closeTries && len(batch) > 0; try++ {
		if try > 0 {
			pause, cancel := q.Wheel.WithTimeout(ctx, firstPause) // also if the wheel is stopped
			<-pause.Done()
			cancel()
			if ctx.Err() != nil {
				break
			}
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
				q.Failed(failure)
				again, err = append(again, batch[i]), failure
			}
		}
		batch = again
	}
	if len(batch) == 0 {
		return 0, nil
	}
	return len(batch), conventions.Join(err, ended(ctx))
}

// ended returns the error of ctx, or context.DeadlineExceeded from its deadline on: a connection with the same
// deadline may fail a moment before ctx ends.
func ended(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && ctx.Err() == nil && !conventions.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// entry is a pending release.
type entry[T any] struct {
	release T
	due     time.Time
	until   time.Time     // the hold has expired, and no late duplicate is expected
	lasts   time.Duration // by which an outage extends until
	pause   time.Duration // before the next attempt after a failure
	copy    time.Duration // before the next release after a success; 0: none follows
}

func releases[T any](batch []entry[T]) []T {
	all := make([]T, len(batch))
	for i, e := range batch {
		all[i] = e.release
	}
	return all
}

// pending is a heap, earliest due first: after an outage there may be as many releases as there were holds.
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
