package conformance_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// order keeps the order in which hooks begin and end. A hook that is held back waits in the middle.
type order struct {
	mu     sync.Mutex
	events []string
	back   map[string]chan struct{} // closed to let the hook go on
}

func (o *order) hook(what string) {
	o.note(what + " begins")
	o.mu.Lock()
	back := o.back[what]
	o.mu.Unlock()
	if back != nil {
		<-back
	}
	o.note(what + " ends")
}

func (o *order) note(event string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, event)
}

func (o *order) noted() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.events)
}

// holdBack holds a hook back until the function that it returns is called, which may be called more than once.
func (o *order) holdBack(what string) (letGo func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	back := make(chan struct{})
	o.back[what] = back
	return sync.OnceFunc(func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.back, what)
		close(back)
	})
}

// Renewed of a hold comes after its Acquired has returned, and returns before its Released begins, also if a renewal is
// answered at that moment.
func TestSignals_RenewedIsBetweenAcquiredAndTheEnd(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	const lease = redistest.SafeLease
	for what, start := range map[string]func(*order, string) (
		acquire func() (release func(context.Context) error, err error), renewals func() renewal.Stats,
	){
		"redislock": func(o *order, name string) (func() (func(context.Context) error, error), func() renewal.Stats) {
			c, err := redislock.New(rdb, redislock.WithWheel(redistest.Wheel(t)), redislock.WithHooks(redislock.Hooks{
				Acquired: func(redislock.Event) { o.hook("acquired") }, Renewed: func(redislock.Event) { o.hook("renewed") },
				Released: func(redislock.Event) { o.hook("released") },
			}))
			require.NoError(t, err)
			redistest.CloseWith(t, c.Close)
			return func() (func(context.Context) error, error) {
				l, err := c.Mutex(name, redislock.WithLease(lease)).Lock(t.Context())
				return l.Unlock, err
			}, func() renewal.Stats { return c.Stats().Renewal }
		},
		"semaphore": func(o *order, name string) (func() (func(context.Context) error, error), func() renewal.Stats) {
			c, err := semaphore.New(rdb, semaphore.WithWheel(redistest.Wheel(t)), semaphore.WithHooks(semaphore.Hooks{
				Acquired: func(semaphore.Event) { o.hook("acquired") }, Renewed: func(semaphore.Event) { o.hook("renewed") },
				Released: func(semaphore.Event) { o.hook("released") },
			}))
			require.NoError(t, err)
			redistest.CloseWith(t, c.Close)
			s := c.Semaphore(name, 0, semaphore.WithLease(lease))
			_, err = s.TrySetPermits(t.Context(), 1)
			require.NoError(t, err)
			return func() (func(context.Context) error, error) {
				g, err := s.Acquire(t.Context(), 1)
				return g.Release, err
			}, func() renewal.Stats { return c.Stats().Renewal }
		},
	} {
		t.Run(what, func(t *testing.T) {
			o, name := &order{back: map[string]chan struct{}{}}, redistest.Name(t)
			acquire, renewals := start(o, name)
			letAcquired, letRenewed := o.holdBack("acquired"), o.holdBack("renewed")
			defer letAcquired()
			defer letRenewed()

			acquired := make(chan func(context.Context) error, 1)
			go func() {
				release, err := acquire()
				if err != nil {
					t.Error(err)
				}
				acquired <- release
			}()
			redistest.Poll(t, func() bool { return renewals().Renewed > 0 })
			aMoment(t, rdb)
			require.Equal(t, []string{"acquired begins"}, o.noted())
			letAcquired()
			release := <-acquired

			redistest.Poll(t, func() bool { return slices.Contains(o.noted(), "renewed begins") })
			released := make(chan error, 1)
			go func() { released <- release(t.Context()) }()
			redistest.Poll(t, func() bool { return renewals().Leases == 0 })
			aMoment(t, rdb)
			require.Equal(t, []string{"acquired begins", "acquired ends", "renewed begins"}, o.noted())
			letRenewed()
			require.NoError(t, <-released)
			require.Equal(t, []string{
				"acquired begins", "acquired ends", "renewed begins", "renewed ends", "released begins", "released ends",
			}, o.noted())
		})
	}
}

// aMoment gives a hook that would be called too early the time to be: some round trips. A slow machine hides such a
// fault, and makes no other.
func aMoment(t *testing.T, rdb *redis.Client) {
	t.Helper()
	for range 50 {
		require.NoError(t, rdb.Ping(t.Context()).Err())
	}
}
