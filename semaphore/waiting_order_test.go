package semaphore_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// Guarantees: S6.
func TestWaiting_OneScriptServesTen(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		rdb := redistest.Shared(t).Client(t)
		c, count := newCountedClient(t, rdb, semaphore.WithPoll(time.Hour))
		name := redistest.Name(t)
		otherClient := newClient(t, redistest.Shared(t).Client(t), semaphore.WithPoll(time.Hour))
		s, other := k.newAny(c, name), k.newAny(otherClient, name)
		other.setPermits(t, 10)
		release, err := other.acquire(t.Context(), 10)
		require.NoError(t, err)

		got := make(chan releaseFunc, 10)
		ctx := within(t, testTimeout)
		done := func(b releaseFunc, err error) {
			if err != nil {
				t.Error(err)
			}
			got <- b
		}
		// The first request looks at once, again when its subscription is open, and in a line also when that to the
		// channel of the semaphore is, on which a fair one hears nothing. The others queue behind it.
		looks := 3
		if k.name == "fair" {
			looks = 2
		}
		s.acquireFunc(ctx, 1, done)
		poll(t, func() bool { return count.scripts() == looks })
		for range 9 {
			s.acquireFunc(ctx, 1, done)
		}
		if k.name == fairKind.name { // which tells Redis that more than one waits
			looks++
		}
		poll(t, func() bool { return count.scripts() == looks && count.inFlight() == 0 })
		before := count.scripts()
		require.NoError(t, release(t.Context()))
		var all []releaseFunc
		for range 10 {
			b := <-got
			require.NotNil(t, b)
			all = append(all, b)
		}
		require.Equal(t, 1, count.scripts()-before)
		for _, b := range all {
			require.NoError(t, b(t.Context()))
		}
		require.EqualValues(t, 10, available(t, s))
	})
}

// A waiter that is cancelled around the instant of its grant either holds the permit or does not. No permit
// is lost: the next waiter gets it.
// Guarantees: S14.
func TestWaiting_CancelledDuringTheGrant(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		const rounds = 60
		server, name := redistest.Shared(t), redistest.Name(t)
		hourly := semaphore.WithPoll(time.Hour) // no poll helps
		c, count := newCountedClient(t, server.Client(t), hourly)
		s, other := k.newAny(c, name), k.newAny(newClient(t, server.Client(t), hourly), name)
		s.setPermits(t, 1)
		granted, after := 0, time.Millisecond
		for range rounds {
			release, err := other.acquire(within(t, testTimeout), 1)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			var mine releaseFunc
			looks := count.scripts()
			first := startCall(func() (err error) { mine, err = s.acquire(ctx, 1); return err })
			second := startCall(func() error {
				b, err := s.acquire(within(t, testTimeout), 1)
				if err != nil {
					return err
				}
				return b(context.WithoutCancel(t.Context()))
			})
			poll(t, func() bool { return count.scripts() > looks }) // they wait
			released := startCall(func() error { return release(t.Context()) })
			busyWait(after) // the instant varies
			cancel()
			require.NoError(t, released.wait(t))
			if err := first.wait(t); err == nil {
				granted++
				after = after * 3 / 4
				require.NoError(t, mine(t.Context()))
			} else {
				after = after * 4 / 3
				require.ErrorIs(t, err, context.Canceled)
			}
			require.NoError(t, second.wait(t), "the next waiter gets the permit")
		}
		poll(t, func() bool { return available(t, s) == 1 })
		t.Logf("granted %d times of %d", granted, rounds)
		require.Positive(t, granted)
		require.Less(t, granted, rounds)
	})
}

// The counterparts of the tests of golang.org/x/sync/semaphore.
// Guarantees: S14.
func TestWaiting_LikeXSync(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		named := func(t *testing.T, n int64) (anySemaphore, string) {
			name := redistest.Name(t)
			s := k.newAny(newClient(t, redistest.Shared(t).Client(t)), name)
			s.setPermits(t, n)
			return s, name
		}
		open := func(t *testing.T, n int64) anySemaphore {
			s, _ := named(t, n)
			return s
		}

		t.Run("a context that has ended acquires nothing", func(t *testing.T) {
			t.Parallel()
			s := open(t, 1)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := s.acquire(ctx, 1)
			require.ErrorIs(t, err, context.Canceled)
			_, err = s.tryAcquire(ctx, 1)
			require.ErrorIs(t, err, context.Canceled)
			require.EqualValues(t, 1, available(t, s))
		})

		t.Run("small requests do not starve a large one", func(t *testing.T) {
			t.Parallel()
			s := open(t, 3)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var all sync.WaitGroup
			for range 9 {
				all.Go(func() {
					for {
						b, err := s.acquire(ctx, 1)
						if err != nil {
							return
						}
						if err := b(context.WithoutCancel(ctx)); err != nil {
							t.Error(err)
						}
					}
				})
			}
			for range 3 {
				b, err := s.acquire(within(t, testTimeout), 3)
				require.NoError(t, err)
				require.NoError(t, b(t.Context()))
			}
			cancel()
			all.Wait()
			poll(t, func() bool { return available(t, s) == 3 })
		})

		t.Run("waiters behind a cancelled one are granted", func(t *testing.T) {
			t.Parallel()
			s, name := named(t, 3)
			b, err := s.acquire(t.Context(), 1)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			large := startCall(func() error { _, err := s.acquire(ctx, 3); return err })
			k.awaitWaiting(t, redistest.Shared(t).Client(t), name, 1)
			got := make(chan error, 2)
			var small [2]releaseFunc
			for i := range small {
				s.acquireFunc(within(t, testTimeout), 1, func(b releaseFunc, err error) { small[i] = b; got <- err })
			}
			_, err = s.tryAcquire(t.Context(), 1)
			require.ErrorIs(t, err, semaphore.ErrNoPermits, "TryAcquire does not overtake, although two permits are free")
			require.False(t, large.ended())
			cancel()
			require.ErrorIs(t, large.wait(t), context.Canceled)
			for range small {
				require.NoError(t, <-got)
			}
			for _, b := range append(small[:], b) {
				require.NoError(t, b(t.Context()))
			}
			require.EqualValues(t, 3, available(t, s))
		})
	})

	t.Run("a request for more than exist delays no other request", func(t *testing.T) {
		t.Parallel()
		c, _, name := newSharedClient(t)
		for _, s := range []anySemaphore{
			countingPermits{c.CountingSemaphore(name+":1", semaphore.WithMax(2))},
			leasedPermits{c.Semaphore(name+":2", 0)},
			leasedPermits{c.FairSemaphore(name+":3", 0)},
		} {
			s.setPermits(t, 2)
			b, err := s.acquire(t.Context(), 2)
			require.NoError(t, err)
			w := startCall(func() error { _, err := s.acquire(within(t, testTimeout), 2); return err })
			_, err = s.acquire(within(t, testTimeout), 3)
			require.ErrorIs(t, err, semaphore.ErrExceedsPermits)
			require.NoError(t, b(t.Context()))
			require.NoError(t, w.wait(t))
		}
	})
}
