package ratelimit

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Reservation is the right to n permits from a time on. It is safe for concurrent use.
type Reservation struct {
	n      int64
	at     time.Time
	client *Client
	reg    *registry
	lane   *lane
	cancel cancelFunc

	mu   sync.Mutex
	over bool
}

// cancelFunc gives back what was reserved.
type cancelFunc func(context.Context) (bool, error)

// N is how many permits are reserved.
func (r *Reservation) N() int64 { return r.n }

// Delay is how long it takes until the permits may be used, 0 if they may be now.
func (r *Reservation) Delay() time.Duration { return max(0, time.Until(r.at)) }

// Wait blocks until the permits may be used. If ctx ends before, the reservation stands; Cancel it.
func (r *Reservation) Wait(ctx context.Context) error { return r.client.wheel.Sleep(ctx, r.Delay()) }

// Cancel gives the permits back, and reports whether others can use them. Those of a Limiter can be given back until they
// leave the log. Those of a Keyed limiter only as long as nothing was charged to the key since, because others may
// have planned on them: otherwise they are lost. A second call does nothing and returns false.
func (r *Reservation) Cancel(ctx context.Context) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return false, nil
	}
	if err := r.client.enter(); err != nil {
		return false, err
	}
	defer r.client.leave()
	ok, err := r.cancel(ctx)
	if err != nil {
		return false, explain(r.lane.key, err)
	}
	r.over = true
	if ok {
		r.reg.forget(r.lane)
	}
	return ok, nil
}

// reserve makes a reservation at most as far ahead as ctx allows.
func (c *Client) reserve(ctx context.Context, n int64, reg *registry, l *lane,
	ask func(ahead time.Duration) (time.Duration, cancelFunc, error),
) (*Reservation, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ahead := maxReserve
	if deadline, ok := ctx.Deadline(); ok {
		ahead = max(0, min(ahead, time.Until(deadline)))
	}
	if n == 0 {
		return nil, &InvalidError{"n", n, "must be at least 1"}
	}
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	var delay time.Duration
	var cancel cancelFunc
	var err error
	l.mu.Lock()
	own := l.trusted(time.Now())
	if own {
		delay, cancel, err = l.reserveOwn(n, ahead)
	}
	l.mu.Unlock()
	if !own {
		delay, cancel, err = l.reserveInRedis(n, ahead, ask)
	}
	if err != nil {
		return nil, err
	}
	c.stats.allowed.Add(1)
	// From the reply on, so that it is never early.
	return &Reservation{n: n, at: time.Now().Add(delay), client: c, reg: reg, lane: l, cancel: cancel}, nil
}

// reserveInRedis asks for a reservation, or goes on without Redis if that does not answer and the count is this process's own.
func (l *lane) reserveInRedis(n int64, ahead time.Duration,
	ask func(ahead time.Duration) (time.Duration, cancelFunc, error),
) (delay time.Duration, cancel cancelFunc, err error) {
	b := &l.client.breaker
	if err = b.refuse(); err == nil {
		if delay, cancel, err = ask(ahead); err != nil && !isFinal(err) {
			err = explain(l.key, err)
		}
		b.heard(err)
	}
	if errors.Is(err, ErrUnavailable) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.goOn(time.Now()) {
			return l.reserveOwn(n, ahead)
		}
	}
	return delay, cancel, err
}

func (g *gcra) reserve(c *Client, key string, n int64, ahead time.Duration) (time.Duration, cancelFunc, error) {
	cost := g.pace.cost(n)
	args := append(g.ceiling(ahead), cost.us, cost.num, 1)
	c.stats.scripts.Add(1)
	reply, err := ints(scripts.RateGCRA.Run(context.Background(), c.rdb, []string{key}, args...), 4, nil)
	if err != nil {
		return 0, nil, err
	}
	now, tat := reply[0], mark{reply[1], reply[2]}
	if reply[3] == 0 {
		return 0, nil, ErrWouldExceedDeadline
	}
	cancel := func(ctx context.Context) (bool, error) {
		return scripts.RateRefund.Run(ctx, c.rdb, []string{key}, g.pace.den, tat.us, tat.num, cost.us, cost.num).Bool()
	}
	return g.pace.delay(tat, now, 0), cancel, nil
}
