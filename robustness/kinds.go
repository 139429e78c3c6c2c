package robustness

import (
	"context"
	"errors"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Kind is a kind of object, of this library or of another one, or a wrong implementation.
type Kind struct {
	Name     string
	Capacity int64 // permits; 1 for a lock
	Fair     bool  // a call that does not wait is refused while others wait
	Counting bool  // without leases
	Shared   bool  // has readers
	Fenced   bool  // holds have tokens
	Quorum   bool  // on several servers
	Reenters bool  // each caller is an owner, which acquires again what it holds

	Limit *Limit // a limiter, which has no holds; New is not used then

	// Tasks makes a queue of tasks; New is not used then.
	Tasks func(rdb redis.UniversalClient, w *wheel.Wheel, s Settings) (taskQueue, error)

	// Writes says that holders without tokens write to the store, which then accepts all writes.
	Writes bool

	// Calls is a part of the bytes of each call whose reply may get lost; by default that of a script.
	Calls string

	// New makes a Locker. A Quorum gets a client for each server.
	New func(rdbs []redis.UniversalClient, w *wheel.Wheel, s Settings) (Locker, error)

	// Prepare creates an object before the run.
	Prepare func(ctx context.Context, rdb redis.UniversalClient, object string) error

	// Free returns the permits that are free.
	Free func(ctx context.Context, c *semaphore.Client, object string) (int64, error)
}

// Rules returns what the checks have to know about objects of the kind.
func (k *Kind) Rules(s Settings) check.Rules {
	return check.Rules{
		Capacity: k.Capacity, Lease: s.Lease, Counting: k.Counting,
		Fair: k.Fair || k.Quorum, // callers of a quorum may split the servers among them
	}
}

// permits is the number of permits of the semaphores of a run.
const permits = 3

// Kinds are the kinds of the library.
var Kinds = []*Kind{
	{Name: "mutex", Capacity: 1, New: locks(func(c *redislock.Client, a Ask) mutex { return c.Mutex(a.Object) })},
	{Name: "fenced mutex", Capacity: 1, Fenced: true, New: locks(
		func(c *redislock.Client, a Ask) mutex { return c.Mutex(a.Object) }, redislock.WithFencing(),
	)},
	{Name: "fair mutex", Capacity: 1, Fair: true, Fenced: true, New: locks(
		func(c *redislock.Client, a Ask) mutex { return c.FairMutex(a.Object) }, redislock.WithFencing(),
	)},
	{Name: "read/write mutex", Capacity: 1, Shared: true, New: locks(func(c *redislock.Client, a Ask) mutex {
		if a.Shared {
			return c.RWMutex(a.Object).Reader()
		}
		return c.RWMutex(a.Object).Writer()
	})},
	{Name: "multi mutex", Capacity: 1, New: locks(func(c *redislock.Client, a Ask) mutex {
		return c.MultiMutex([]string{"{" + a.Object + "}:1", "{" + a.Object + "}:2", "{" + a.Object + "}:3"})
	})},
	{Name: "re-entrant mutex", Capacity: 1, Reenters: true, New: locks(
		func(c *redislock.Client, a Ask) mutex { return c.Mutex(a.Object) },
	)},
	{Name: "re-entrant fair mutex", Capacity: 1, Fair: true, Reenters: true, New: locks(
		func(c *redislock.Client, a Ask) mutex { return c.FairMutex(a.Object) },
	)},
	{Name: "quorum", Capacity: 1, Quorum: true, New: newQuorumLocks},
	{
		Name: "leased permits", Capacity: permits, Fair: true, New: leases(false),
		Prepare: prepareSemaphore(false), Free: freeSemaphore(false),
	},
	{
		Name: "fair leased permits", Capacity: permits, Fair: true, New: leases(true),
		Prepare: prepareSemaphore(true), Free: freeSemaphore(true),
	},
	{
		Name: "counting permits", Capacity: permits, Fair: true, Counting: true,
		New: func(rdbs []redis.UniversalClient, w *wheel.Wheel, s Settings) (Locker, error) {
			return newPermits(rdbs[0], w, s, false, true)
		},
		Prepare: func(ctx context.Context, rdb redis.UniversalClient, object string) error {
			return withSemaphores(ctx, rdb, func(c *semaphore.Client) error {
				_, err := c.CountingSemaphore(object).TrySetPermits(ctx, permits)
				return err
			})
		},
		Free: func(ctx context.Context, c *semaphore.Client, object string) (int64, error) {
			return c.CountingSemaphore(object).Available(ctx)
		},
	},
}

type newLocker = func([]redis.UniversalClient, *wheel.Wheel, Settings) (Locker, error)

func locks(lock func(*redislock.Client, Ask) mutex, opts ...redislock.LockOption) newLocker {
	return func(rdbs []redis.UniversalClient, w *wheel.Wheel, s Settings) (Locker, error) {
		return newLocks(rdbs[0], w, s, lock, opts...)
	}
}

func leases(fair bool) newLocker {
	return func(rdbs []redis.UniversalClient, w *wheel.Wheel, s Settings) (Locker, error) {
		return newPermits(rdbs[0], w, s, fair, false)
	}
}

func prepareSemaphore(fair bool) func(context.Context, redis.UniversalClient, string) error {
	return func(ctx context.Context, rdb redis.UniversalClient, object string) error {
		return withSemaphores(ctx, rdb, func(c *semaphore.Client) error {
			l := c.Semaphore(object, 0)
			if fair {
				l = c.FairSemaphore(object, 0)
			}
			_, err := l.TrySetPermits(ctx, permits)
			return err
		})
	}
}

func freeSemaphore(fair bool) func(context.Context, *semaphore.Client, string) (int64, error) {
	return func(ctx context.Context, c *semaphore.Client, object string) (int64, error) {
		l := c.Semaphore(object, 0)
		if fair {
			l = c.FairSemaphore(object, 0)
		}
		g, err := l.TryAcquire(ctx, 1) // drops the requests of dead processes
		if err == nil {
			err = g.Release(ctx)
		}
		if err != nil && !errors.Is(err, semaphore.ErrNoPermits) {
			return 0, err
		}
		return l.Available(ctx)
	}
}

func withSemaphores(ctx context.Context, rdb redis.UniversalClient, f func(*semaphore.Client) error) error {
	w, err := wheel.New() // the worker of the default one may outlive the tests
	if err != nil {
		return err
	}
	defer func() { _, _ = w.Stop(ctx) }()
	c, err := semaphore.New(rdb, semaphore.WithWheel(w))
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	return f(c)
}

// KindOf returns the kind of a name.
func KindOf(name string) *Kind {
	for _, k := range slices.Concat(Kinds, LimitKinds, TaskKinds, ControlKinds, peerKinds) {
		if k.Name == name {
			return k
		}
	}
	return nil
}
