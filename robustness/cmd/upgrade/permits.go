package main

import (
	"context"
	"fmt"
	"time"

	"github.com/cogwheel-go/cogwheel/semaphore"
)

// Semaphores, whose permits are set by a request.
var (
	_ = register("semaphore", func(c *clients, name string) object {
		return leased(c.permits.Semaphore(name, 0, semaphore.WithLease(lease)))
	})
	_ = register("fair semaphore", func(c *clients, name string) object {
		return leased(c.permits.FairSemaphore(name, 0, semaphore.WithLease(lease)))
	})
	_ = register("counting semaphore", func(c *clients, name string) object {
		return counting(c.permits.CountingSemaphore(name))
	})
)

func leased(s *semaphore.Semaphore) object {
	return object{
		set: s.TrySetPermits,
		acquire: func(ctx context.Context, n int64, wait bool) (hold, error) {
			acquire := s.TryAcquire
			if wait {
				acquire = s.Acquire
			}
			g, err := acquire(ctx, n)
			return grant{g}, err
		},
		state: func(ctx context.Context) (string, error) {
			s, err := s.State(ctx)
			return fmt.Sprint(s.Free, " free"), err
		},
		waiting: func(ctx context.Context) (int64, error) {
			s, err := s.State(ctx)
			return s.Waiting, err
		},
	}
}

type grant struct{ *semaphore.Grant }

func (g grant) release(ctx context.Context) error { return g.Release(ctx) }

func counting(s *semaphore.CountingSemaphore) object {
	return object{
		set: s.TrySetPermits,
		acquire: func(ctx context.Context, n int64, wait bool) (hold, error) {
			acquire := s.TryAcquire
			if wait {
				acquire = s.Acquire
			}
			return counted{s, n}, acquire(ctx, n)
		},
		state: func(ctx context.Context) (string, error) {
			free, err := s.Available(ctx)
			return fmt.Sprint(free, " free"), err
		},
	}
}

// counted are permits without a lease.
type counted struct {
	s *semaphore.CountingSemaphore
	n int64
}

func (counted) Deadline() time.Time                 { return time.Time{} }
func (counted) Done() <-chan struct{}               { return nil }
func (counted) Valid() bool                         { return true }
func (counted) Token() int64                        { return 0 }
func (c counted) release(ctx context.Context) error { return c.s.Release(ctx, c.n) }
