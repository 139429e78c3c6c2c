package robustness

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/robustness/history"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// mutex is what the exclusive kinds of redislock have in common.
type mutex interface {
	Lock(ctx context.Context) (*redislock.Lock, error)
	TryLock(ctx context.Context) (*redislock.Lock, error)
}

// cogwheelLocks are the locks of a redislock.Client.
type cogwheelLocks struct {
	close func(context.Context) error
	lock  func(Ask) mutex
}

func newLocks(
	rdb redis.UniversalClient, w *wheel.Wheel, s Settings,
	lock func(*redislock.Client, Ask) mutex, opts ...redislock.LockOption,
) (Locker, error) {
	opts = append(opts, redislock.WithLease(s.Lease))
	c, err := redislock.New(
		rdb, redislock.WithWheel(w), redislock.WithPoll(s.Poll), redislock.WithLockDefaults(opts...),
	)
	if err != nil {
		return nil, err
	}
	return &cogwheelLocks{c.Close, func(a Ask) mutex { return lock(c, a) }}, nil
}

func (l *cogwheelLocks) Close(ctx context.Context) error { return l.close(ctx) }

func (l *cogwheelLocks) Acquire(ctx context.Context, ask Ask) (Hold, error) {
	m := l.lock(ask)
	acquire := m.Lock
	if ask.Try {
		acquire = m.TryLock
	}
	if ask.Owner != nil {
		ctx = redislock.ContextWithOwner(ctx, ask.Owner)
	}
	held, err := acquire(ctx)
	if errors.Is(err, redislock.ErrLocked) {
		return nil, errors.Join(ErrRefused, err)
	}
	if err != nil {
		return nil, err
	}
	return cogwheelLock{held}, nil
}

type cogwheelLock struct{ *redislock.Lock }

func (l cogwheelLock) Told() <-chan struct{} { return l.Done() }

func (l cogwheelLock) Release(ctx context.Context) (history.Step, error) {
	err := l.Unlock(ctx)
	switch {
	case err == nil:
		return history.Released, nil
	case errors.Is(err, redislock.ErrLost):
		return history.Lost, err
	default:
		return history.Open, err
	}
}

// newQuorumLocks makes locks on a majority of servers.
func newQuorumLocks(rdbs []redis.UniversalClient, w *wheel.Wheel, s Settings) (Locker, error) {
	q, err := redislock.NewQuorum(
		rdbs, redislock.WithWheel(w), redislock.WithPoll(s.Poll),
		redislock.WithLockDefaults(redislock.WithLease(s.Lease)),
	)
	if err != nil {
		return nil, err
	}
	return &cogwheelLocks{q.Close, func(a Ask) mutex { return q.Mutex(a.Object) }}, nil
}

// cogwheelPermits are the permits of a semaphore.Client.
type cogwheelPermits struct {
	client   *semaphore.Client
	open     func(name string) *semaphore.Semaphore
	counting bool // permits of a CountingSemaphore, which have no lease
	wheel    *wheel.Wheel
}

func newPermits(rdb redis.UniversalClient, w *wheel.Wheel, s Settings, fair, counting bool) (Locker, error) {
	c, err := semaphore.New(rdb, semaphore.WithWheel(w), semaphore.WithPoll(s.Poll))
	if err != nil {
		return nil, err
	}
	open := c.Semaphore
	if fair {
		open = c.FairSemaphore
	}
	return &cogwheelPermits{
		c, func(name string) *semaphore.Semaphore { return open(name, 0, semaphore.WithLease(s.Lease)) }, counting, w,
	}, nil
}

func (p *cogwheelPermits) Close(ctx context.Context) error { return p.client.Close(ctx) }

func (p *cogwheelPermits) Acquire(ctx context.Context, ask Ask) (Hold, error) {
	if p.counting {
		return p.acquireCounting(ctx, ask)
	}
	l := p.open(ask.Object)
	acquire := l.Acquire
	if ask.Try {
		acquire = l.TryAcquire
	}
	g, err := acquire(ctx, ask.N)
	if err != nil {
		return nil, refusal(err)
	}
	return grant{g}, nil
}

func (p *cogwheelPermits) acquireCounting(ctx context.Context, ask Ask) (Hold, error) {
	s := p.client.CountingSemaphore(ask.Object)
	acquire := s.Acquire
	if ask.Try {
		acquire = s.TryAcquire
	}
	if err := acquire(ctx, ask.N); err != nil {
		return nil, refusal(err)
	}
	return &counted{s: s, n: ask.N, wheel: p.wheel}, nil
}

func refusal(err error) error {
	if errors.Is(err, semaphore.ErrNoPermits) {
		return errors.Join(ErrRefused, err)
	}
	return err
}

type grant struct{ *semaphore.Grant }

func (g grant) Told() <-chan struct{} { return g.Done() }

func (g grant) Release(ctx context.Context) (history.Step, error) {
	err := g.Grant.Release(ctx)
	switch {
	case err == nil:
		return history.Released, nil
	case errors.Is(err, semaphore.ErrLost):
		return history.Lost, err
	default:
		return history.Open, err
	}
}

// counted are permits of a counting semaphore.
type counted struct {
	s     *semaphore.CountingSemaphore
	n     int64
	wheel *wheel.Wheel
	mu    sync.Mutex
	gone  bool
}

func (c *counted) Valid() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.gone
}

func (c *counted) Told() <-chan struct{} { return nil }
func (c *counted) Token() int64          { return 0 }

func (c *counted) Release(ctx context.Context) (history.Step, error) {
	c.mu.Lock()
	c.gone = true
	c.mu.Unlock()
	for ctx := context.WithoutCancel(ctx); ; {
		// After a loss of data, Release could create the semaphore with these permits alone.
		switch _, err := c.s.ReleaseIfExists(ctx, c.n); {
		case err == nil:
			return history.Released, nil
		case errors.Is(err, semaphore.ErrUnconfirmed), errors.Is(err, semaphore.ErrClosed):
			return history.Open, err
		}
		// Refused: the permits are still those of the caller.
		if err := c.wheel.Sleep(ctx, 50*time.Millisecond); errors.Is(err, wheel.ErrTooManyPending) {
			time.Sleep(50 * time.Millisecond)
		} else if err != nil {
			return history.Open, err
		}
	}
}
