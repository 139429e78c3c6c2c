package redisconn

import (
	"context"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/usercode"
)

// patience bounds how long a call waits for the answer to a query that it can do without. A call that has failed on the
// pool that it has waits for longer.
const patience, longPatience = 250 * time.Millisecond, 2 * time.Second

// query runs a blocking question for calls that can do without the answer: one at a time, on a goroutine of its own.
type query struct {
	dedicated *Dedicated

	mu      sync.Mutex
	began   time.Time
	pending chan struct{} // closed at the end of ask; nil if it does not run
	slow    bool          // a call has given up waiting for pending
}

// run starts ask, unless it runs or began within the pause, and waits for its end. It waits at most for half of the
// time of ctx, and not at all if another call has given up before.
func (q *query) run(ctx context.Context, pause, patience time.Duration, ask func()) {
	pending := q.start(pause, ask)
	if pending == nil {
		return
	}
	wait := patience
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, deadline.Sub(conventions.Now())/2)
	}
	ctx, cancel := q.dedicated.wheel.WithTimeout(ctx, wait)
	defer cancel()
	select {
	case <-pending:
	case <-ctx.Done():
		q.mu.Lock()
		defer q.mu.Unlock()
		q.slow = q.slow || q.pending == pending
	}
}

// start returns a channel that is closed at the end of ask, or nil if there is nothing to wait for.
func (q *query) start(pause time.Duration, ask func()) <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.dedicated.wheel.Now()
	switch {
	case q.pending != nil && q.slow:
		return nil
	case q.pending != nil:
		return q.pending
	case !q.began.IsZero() && now.Sub(q.began) < pause:
		return nil
	}
	pending := make(chan struct{})
	if !q.dedicated.start(func() {
		defer close(pending)
		defer q.over()
		usercode.Here(ask, func(*usercode.Failure) {}) // a Dialer or OnConnect may fail
	}) {
		return nil
	}
	q.began, q.pending, q.slow = now, pending, false
	return pending
}

func (q *query) over() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pending = nil
}
