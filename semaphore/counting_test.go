package semaphore_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

func TestCountingSemaphore_Permits(t *testing.T) {
	t.Parallel()

	t.Run("are set once, and keep an expiry that others have set", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := newSharedClient(t)
		s := c.CountingSemaphore(name)
		ok, err := s.TrySetPermits(t.Context(), 10)
		require.NoError(t, err)
		require.True(t, ok)
		require.EqualValues(t, -1, rdb.PTTL(t.Context(), name).Val(), "they do not expire")
		require.True(t, rdb.PExpire(t.Context(), name, 3*time.Second).Val())
		ok, err = s.TrySetPermits(t.Context(), 20)
		require.NoError(t, err)
		require.False(t, ok)
		require.NoError(t, s.AddPermits(t.Context(), 1))
		_, err = s.Drain(t.Context())
		require.NoError(t, err)
		ttl := rdb.PTTL(t.Context(), name).Val()
		require.Positive(t, ttl, "adding and draining keep the expiry")
		require.LessOrEqual(t, ttl, 3*time.Second)
		poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
	})

	t.Run("are added and removed, also below zero", func(t *testing.T) {
		t.Parallel()
		c, _, name := newSharedClient(t)
		s := c.CountingSemaphore(name)
		mustSetPermits(t, s, 3)
		for _, step := range []struct {
			name string
			do   func() error
			free int64 // after it
		}{
			{"AddPermits(2)", func() error { return s.AddPermits(t.Context(), 2) }, 5},
			{"Acquire(5)", func() error { return s.Acquire(t.Context(), 5) }, 0},
			{"AddPermits(-2)", func() error { return s.AddPermits(t.Context(), -2) }, -2},
			{"Release(3) raises the number from -2", func() error { return s.Release(t.Context(), 3) }, 1},
		} {
			require.NoError(t, step.do(), step.name)
			require.Equal(t, step.free, available(t, s), step.name)
		}
	})

	t.Run("are drained, also if none were set", func(t *testing.T) {
		t.Parallel()
		c, _, name := newSharedClient(t)
		s := c.CountingSemaphore(name)
		n, err := s.Drain(t.Context())
		require.NoError(t, err)
		require.Zero(t, n)
		mustSetPermits(t, s, 7)
		n, err = s.Drain(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 7, n)
		require.Zero(t, available(t, s))
	})

	t.Run("none are acquired at once, without a key", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := newSharedClient(t)
		require.NoError(t, c.CountingSemaphore(name).Acquire(t.Context(), 0))
		require.NoError(t, c.CountingSemaphore(name).TryAcquire(t.Context(), 0))
		require.Zero(t, rdb.Exists(t.Context(), name).Val())
	})

	t.Run("are created by releases", func(t *testing.T) {
		t.Parallel()
		c, _, name := newSharedClient(t)
		s := c.CountingSemaphore(name)
		ok, err := s.ReleaseIfExists(t.Context(), 1)
		require.NoError(t, err)
		require.False(t, ok)
		require.NoError(t, s.Release(t.Context(), 1))
		require.NoError(t, s.Release(t.Context(), 1))
		require.NoError(t, s.Acquire(t.Context(), 2))
		ok, err = s.ReleaseIfExists(t.Context(), 1)
		require.NoError(t, err)
		require.True(t, ok)
		require.EqualValues(t, 1, available(t, s))
	})

	t.Run("are not released above a maximum", func(t *testing.T) {
		t.Parallel()
		c, _, name := newSharedClient(t)
		s := c.CountingSemaphore(name, semaphore.WithMax(3))
		mustSetPermits(t, s, 3)
		require.ErrorIs(t, s.Release(t.Context(), 1), semaphore.ErrOverRelease)
		require.EqualValues(t, 3, available(t, s))
		require.NoError(t, s.Acquire(t.Context(), 2))
		require.ErrorIs(t, s.Release(t.Context(), 3), semaphore.ErrOverRelease)
		require.NoError(t, s.Release(t.Context(), 2))
		require.ErrorIs(t, s.Acquire(t.Context(), 4), semaphore.ErrExceedsPermits)
	})
}

func TestCountingSemaphore_TryAcquire(t *testing.T) {
	t.Parallel()
	c, _, name := newSharedClient(t)
	s := c.CountingSemaphore(name)
	mustSetPermits(t, s, 2)
	err := s.TryAcquire(t.Context(), 3)
	require.ErrorIs(t, err, semaphore.ErrNoPermits)
	require.ErrorContains(t, err, name)
	require.NoError(t, s.TryAcquire(t.Context(), 2))
	require.ErrorIs(t, s.TryAcquire(t.Context(), 1), semaphore.ErrNoPermits)
	require.Zero(t, available(t, s))
}

// Guarantees: S6.
func TestCountingSemaphore_AcquireWaits(t *testing.T) {
	t.Parallel()

	t.Run("until a release of another process", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := newSharedClient(t)
		other := newClient(t, redistest.Shared(t).Client(t)).CountingSemaphore(name)
		s := c.CountingSemaphore(name)
		mustSetPermits(t, s, 1)
		require.NoError(t, other.Acquire(t.Context(), 1))
		w := startCall(func() error { return s.Acquire(within(t, testTimeout), 1) })
		awaitListeners(t, rdb, scripts.SemChannel(name), 1)
		began := time.Now()
		require.NoError(t, other.Release(t.Context(), 1))
		require.NoError(t, w.wait(t))
		require.Less(t, time.Since(began), wakeLimit)
		require.Zero(t, available(t, s))
	})

	t.Run("until a service in Java releases, whatever it publishes", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := newSharedClient(t)
		s := c.CountingSemaphore(name)
		require.NoError(t, rdb.Set(t.Context(), name, 0, 0).Err())
		w := startCall(func() error { return s.Acquire(within(t, testTimeout), 2) })
		awaitListeners(t, rdb, scripts.SemChannel(name), 1)
		for _, payload := range []string{"-3", "0", "9", "x"} { // too few, none, wrong, no number
			require.NoError(t, rdb.Publish(t.Context(), scripts.SemChannel(name), payload).Err())
		}
		require.False(t, w.ended())
		began := time.Now()
		require.NoError(t, rdb.IncrBy(t.Context(), name, 2).Err())
		require.NoError(t, rdb.Publish(t.Context(), scripts.SemChannel(name), "2").Err())
		require.NoError(t, w.wait(t))
		require.Less(t, time.Since(began), wakeLimit)
	})

	t.Run("and its release wakes a service in Java", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := newSharedClient(t)
		sub := rdb.Subscribe(t.Context(), scripts.SemChannel(name))
		defer sub.Close()
		_, err := sub.Receive(t.Context())
		require.NoError(t, err)
		s := c.CountingSemaphore(name)
		mustSetPermits(t, s, 1)
		require.NoError(t, s.Release(t.Context(), 2))
		require.NoError(t, s.AddPermits(t.Context(), 4))
		for _, want := range []string{"01", "03", "07"} { // a decimal number to Java
			m, err := sub.ReceiveMessage(t.Context())
			require.NoError(t, err)
			require.Equal(t, want, m.Payload)
		}
		require.Equal(t, "7", rdb.Get(t.Context(), name).Val())
	})

	t.Run("until enough permits are added", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := newSharedClient(t)
		s := c.CountingSemaphore(name)
		mustSetPermits(t, s, 1)
		w := startCall(func() error { return s.Acquire(within(t, testTimeout), 3) })
		awaitListeners(t, rdb, scripts.SemChannel(name), 1)
		require.NoError(t, s.Release(t.Context(), 1))
		require.False(t, w.ended())
		require.NoError(t, s.AddPermits(t.Context(), 1))
		require.NoError(t, w.wait(t))
		require.Zero(t, available(t, s))
	})

	t.Run("until its context ends, and then holds nothing", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := newSharedClient(t)
		s := c.CountingSemaphore(name)
		mustSetPermits(t, s, 0)
		err := s.Acquire(within(t, 100*time.Millisecond), 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, s.Release(t.Context(), 1))
		require.EqualValues(t, 1, available(t, s))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, s.Acquire(ctx, 1), context.Canceled, "a context that has ended acquires nothing")
		require.Equal(t, "1", rdb.Get(t.Context(), name).Val())
	})

	t.Run("behind a large request until that is cancelled", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := newSharedClient(t)
		s := c.CountingSemaphore(name)
		mustSetPermits(t, s, 2)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		large := startCall(func() error { return s.Acquire(ctx, 5) })
		awaitListeners(t, rdb, scripts.SemChannel(name), 1)
		small := startCall(func() error { return s.Acquire(within(t, testTimeout), 2) })
		require.NoError(t, s.Release(t.Context(), 1))
		require.False(t, small.ended())
		began := time.Now()
		cancel()
		require.ErrorIs(t, large.wait(t), context.Canceled)
		require.NoError(t, small.wait(t))
		require.Less(t, time.Since(began), wakeLimit)
	})
}

func TestCountingSemaphore_ManyCallersShareScripts(t *testing.T) {
	t.Parallel()
	const callers, each = 32, 50
	rdb := redistest.Shared(t).Client(t)
	c, count := newCountedClient(t, rdb)
	s := c.CountingSemaphore(redistest.Name(t))
	mustSetPermits(t, s, callers)
	var all sync.WaitGroup
	var failed atomic.Int64
	for range callers {
		all.Go(func() {
			for range each {
				if errors.Join(s.Acquire(t.Context(), 1), s.Release(t.Context(), 1)) != nil {
					failed.Add(1)
				}
			}
		})
	}
	all.Wait()
	require.Zero(t, failed.Load())
	require.EqualValues(t, callers, available(t, s))
	require.Less(t, count.scripts(), callers*each, "without sharing there would be two per turn")
	t.Logf("%d scripts for %d calls", count.scripts(), 2*callers*each)
}

// Clients acquire one permit or all of them. They never hold more than there are, and no request starves.
// Guarantees: S1.
func TestCountingSemaphore_Excludes(t *testing.T) {
	t.Parallel()
	const clients, times = 8, 25
	server := redistest.Shared(t)
	name := redistest.Name(t)
	const permits = 3
	rdb := server.Client(t)
	mustSetPermits(t, newClient(t, rdb).CountingSemaphore(name), permits)
	var held, most, violations atomic.Int64
	var all sync.WaitGroup
	for i := range clients {
		s := newClient(t, server.Client(t)).CountingSemaphore(name)
		all.Go(func() {
			for k := range times {
				n := int64(1)
				if (i+k)%4 == 0 {
					n = permits
				}
				if err := s.Acquire(t.Context(), n); err != nil {
					t.Error(err)
					return
				}
				now := held.Add(n)
				most.Store(max(most.Load(), now))
				if now > permits {
					violations.Add(1)
				}
				held.Add(-n)
				if err := s.Release(t.Context(), n); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	require.Zero(t, violations.Load())
	require.Equal(t, strconv.Itoa(permits), rdb.Get(t.Context(), name).Val())
}

func TestCountingSemaphore_AcquireFunc(t *testing.T) {
	t.Parallel()
	c, _, name := newSharedClient(t)
	s := c.CountingSemaphore(name)
	mustSetPermits(t, s, 1)
	got := make(chan error, 1)
	cancel := s.AcquireFunc(t.Context(), 1, func(err error) { got <- err })
	require.NoError(t, <-got)
	cancel() // too late
	cancel = s.AcquireFunc(t.Context(), 1, func(err error) { got <- err })
	cancel()
	cancel()
	require.ErrorIs(t, <-got, context.Canceled)
	ctx, stop := context.WithCancel(t.Context())
	s.AcquireFunc(ctx, 1, func(err error) { got <- err })
	stop()
	require.ErrorIs(t, <-got, context.Canceled)
	s.AcquireFunc(t.Context(), -1, func(err error) { got <- err })
	require.ErrorIs(t, <-got, cogwheel.ErrInvalid)
	s.AcquireFunc(t.Context(), 0, func(err error) { got <- err })
	require.NoError(t, <-got)
	require.NoError(t, s.Release(t.Context(), 1))
	poll(t, func() bool { return available(t, s) == 1 })
}
