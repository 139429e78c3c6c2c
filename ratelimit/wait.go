package ratelimit

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// request is what a waiter asks for.
type request struct {
	n        int64
	deadline time.Time // zero if none
	grant    []entry   // of the log, once granted
}

// poll is how long a line may stand still without having been told for how long. Redis always tells.
const poll = time.Hour

// newLine returns the lines of a registry: one for each key that somebody waits for.
func (r *registry) newLine() *waitqueue.Group[request] {
	return waitqueue.New(r.client.wheel, waitqueue.Config[request]{
		Attempt:  r.attempt,
		MaxBatch: maxBatch,
		Poll:     poll,
		GiveBack: r.giveBack,
	})
}

// attempt asks for the front of a line in one script, of which the first denial denies the rest: nobody is overtaken.
func (r *registry) attempt(key string, batch []*waitqueue.Waiter[request]) (again time.Duration, err error) {
	l := r.use(key)
	defer r.release(l)
	calls := make([]*call, len(batch))
	for i, w := range batch {
		calls[i] = &call{n: w.Value.n}
	}
	if !l.byMemory(calls) {
		_ = l.out.do(context.Background(), &job{lane: l, calls: calls, fifo: true}) // which never ends before it is decided
	}
	ahead := int64(0)
	for i, w := range batch {
		c := calls[i]
		switch {
		case errors.Is(c.err, ErrUnavailable):
			pause := r.client.breaker.probe
			again = pause + rand.N(pause/2+1)
		case c.err != nil:
			w.Fail(c.err)
		case c.res.Allowed:
			w.Value.grant = c.res.grant
			w.Grant()
		default:
			if again == 0 {
				again = max(c.res.RetryAfter, time.Microsecond)
			}
			if ahead += c.n; l.late(ahead, w.Value.deadline) {
				ahead -= c.n
				w.Fail(ErrWouldExceedDeadline)
			}
		}
	}
	return again, nil
}

// giveBack returns what was granted to waiters that had gone. What GCRA and a window have granted cannot be told apart from
// what others use, so it is kept for the next who asks here, for a moment.
func (r *registry) giveBack(key string, granted []request) {
	l := r.use(key)
	defer r.release(l)
	var n int64
	for _, g := range granted {
		if len(g.grant) > 0 {
			_, _ = r.client.giveBack(context.Background(), l, g.grant) // what is not given back leaves the log by itself
		} else {
			n += g.n
		}
	}
	if n > 0 && l.engine != r.client.logs.engine {
		l.keep(n)
	}
}

// wait blocks until n permits are granted.
func (l *lane) wait(ctx context.Context, r *registry, n int64) error {
	req, err := l.line(ctx, n)
	if err != nil {
		return err
	}
	l.waiting.Add(1)
	l.client.stats.waiting.Add(1)
	_, err = r.line.Wait(ctx, l.key, req)
	l.client.stats.waiting.Add(-1)
	l.waiting.Add(-1)
	return err
}

// waitFunc calls f when n permits are granted, or can no longer be; then follows it, or the cancelling.
func (l *lane) waitFunc(ctx context.Context, r *registry, n int64, f func(error), then func()) (cancel func()) {
	req, err := l.line(ctx, n)
	if err != nil {
		then()
		return l.client.refuse(f, err)
	}
	l.waiting.Add(1)
	l.client.stats.waiting.Add(1)
	over := func() {
		l.client.stats.waiting.Add(-1)
		l.waiting.Add(-1)
		then()
	}
	leave := r.line.WaitFunc(ctx, l.key, req, func(_ request, err error) {
		over()
		f(err)
	})
	return func() {
		if leave() {
			over()
			go f(context.Canceled)
		}
	}
}

// line checks whether a wait can end in time.
func (l *lane) line(ctx context.Context, n int64) (request, error) {
	deadline, _ := ctx.Deadline()
	if err := ctx.Err(); err != nil {
		return request{}, err
	}
	if l.late(n, deadline) {
		return request{}, ErrWouldExceedDeadline
	}
	return request{n: n, deadline: deadline}, nil
}

// late reports whether the last of total permits cannot be had before the deadline, as far as is known.
func (l *lane) late(total int64, deadline time.Time) bool {
	if deadline.IsZero() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.own != nil {
		return l.trusted(now) && now.Add(l.own.log.wait(now.Sub(l.client.began), total)).After(deadline)
	}
	passed := now.Sub(l.sentAt)
	return l.view != nil && passed <= maxDenyFor && now.Add(l.view.wait(total, passed)).After(deadline)
}
