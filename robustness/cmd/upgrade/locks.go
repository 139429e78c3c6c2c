package main

import (
	"context"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// Locks. The name of an object is the tag of the names of its keys, also for a multi mutex and its parts.
var (
	_ = register("mutex", func(c *clients, name string) object {
		return mutex(c.locks.Mutex(name))
	})
	_ = register("mutex with fencing", func(c *clients, name string) object {
		return mutex(c.locks.Mutex(name, redislock.WithFencing()))
	})
	_ = register("fair mutex", func(c *clients, name string) object {
		return mutex(c.locks.FairMutex(name, redislock.WithFencing()))
	})
	_ = register("reader", func(c *clients, name string) object {
		return mutex(c.locks.RWMutex(name).Reader())
	})
	_ = register("writer", func(c *clients, name string) object {
		return mutex(c.locks.RWMutex(name, redislock.WithFencing()).Writer())
	})
	_ = register("multi mutex", func(c *clients, name string) object {
		return lock(c.locks.MultiMutex([]string{part(name, "1"), part(name, "2"), part(name, "3")}))
	})
	_ = register("mutex of a multi mutex", func(c *clients, name string) object {
		return mutex(c.locks.Mutex(part(name, "2")))
	})
)

func part(name, number string) string { return "{" + name + "}:" + number }

func mutex(m *redislock.Mutex) object {
	o := lock(m)
	o.force = m.ForceUnlock
	o.state = func(ctx context.Context) (string, error) {
		s, err := m.State(ctx)
		if s.Locked {
			return "held", err
		}
		return "free", err
	}
	o.waiting = func(ctx context.Context) (int64, error) {
		s, err := m.State(ctx)
		return int64(len(s.Waiting)), err
	}
	return o
}

func lock(l interface {
	Lock(ctx context.Context) (*redislock.Lock, error)
	TryLock(ctx context.Context) (*redislock.Lock, error)
},
) object {
	return object{acquire: func(ctx context.Context, _ int64, wait bool) (hold, error) {
		acquire := l.TryLock
		if wait {
			acquire = l.Lock
		}
		held, err := acquire(ctx)
		return heldLock{held}, err
	}}
}

type heldLock struct{ *redislock.Lock }

func (l heldLock) release(ctx context.Context) error { return l.Unlock(ctx) }
