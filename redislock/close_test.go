package redislock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Guarantees: L21.
func TestClient_Close(t *testing.T) {
	t.Parallel()

	t.Run("releases held locks and tells their holders", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		var held []*redislock.Lock
		for i := range 250 {
			held = append(held, mustLock(t, c.Mutex(fmt.Sprintf("%s:%d", name, i))))
		}
		ctx := held[0].Context(t.Context())
		require.NoError(t, c.Close(t.Context()))
		for _, l := range held {
			require.True(t, isClosed(l.Done()))
			require.ErrorIs(t, l.Err(), redislock.ErrClosed)
			require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrClosed)
			requireFree(t, rdb, l.Name())
		}
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), redislock.ErrClosed)
	})

	t.Run("refuses later calls; a second Close does nothing", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		require.NoError(t, c.Close(t.Context()))
		require.NoError(t, c.Close(t.Context()))
		_, err := c.Mutex(name).Lock(t.Context())
		require.ErrorIs(t, err, redislock.ErrClosed)
		_, err = c.Mutex(name).TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrClosed)
		require.ErrorIs(t, c.Mutex(name).Do(t.Context(), func(context.Context) error {
			return nil
		}), redislock.ErrClosed)
		requireFree(t, rdb, name)
	})

	t.Run("under load leaves no key", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		rdb := server.Client(t)
		for round := range 10 {
			c := newClient(t, server.Client(t))
			var running sync.WaitGroup
			for i := range 8 {
				running.Go(func() {
					m := c.Mutex(fmt.Sprintf("name:%d", i%3))
					for {
						l, err := m.Lock(t.Context())
						if err != nil {
							require.ErrorIs(t, err, redislock.ErrClosed)
							return
						}
						if err := l.Unlock(t.Context()); err != nil {
							require.ErrorIs(t, err, redislock.ErrClosed)
							return
						}
					}
				})
			}
			require.NoError(t, newWheel(t).Sleep(t.Context(), time.Duration(round)*7*time.Millisecond))
			require.NoError(t, c.Close(t.Context()))
			running.Wait()
			size, err := rdb.DBSize(t.Context()).Result()
			require.NoError(t, err)
			require.Zero(t, size)
		}
	})

	t.Run("returns when its context ends while Redis hangs", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		rdb := server.Client(t, func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = patience, -1 })
		w := newWheel(t)
		c, err := redislock.New(rdb, redislock.WithWheel(w))
		require.NoError(t, err)
		l := mustLock(t, c.Mutex("held"))
		server.Pause()
		start := time.Now()
		err = c.Close(within(t, 200*time.Millisecond))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "1 locks could not be released")
		require.Less(t, time.Since(start), 10*time.Second)
		require.ErrorIs(t, l.Err(), redislock.ErrClosed)
		server.Resume()
	})
}

// A release that fails while the wheel is full is sent later.
// Guarantees: W23.
func TestClient_ReleasesOnAFullWheel(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	server := redistest.Start(t)
	rdb, name := server.Client(t), redistest.Name(t)
	w, err := wheel.New(wheel.WithMaxPendingTimeouts(64))
	require.NoError(t, err)
	dialer := &redistest.FaultDialer{Timeout: 300 * time.Millisecond}
	c, err := redislock.New(server.Client(t, func(o *redis.Options) {
		o.Dialer, o.MaxRetries, o.ReadTimeout = dialer.Dial, -1, 300*time.Millisecond
	}), redislock.WithWheel(w))
	require.NoError(t, err)
	defer func() {
		require.NoError(t, c.Close(context.Background()))
		_, err := w.Stop(context.Background())
		require.NoError(t, err)
	}()
	for err == nil {
		_, err = w.AfterFunc(time.Hour, func() {})
	}
	require.ErrorIs(t, err, wheel.ErrTooManyPending)
	held := mustLock(t, c.Mutex(name, redislock.WithLease(time.Hour)))
	dialer.Set(redistest.BlackholeUp)
	done := make(chan error, 1)
	go func() { done <- held.Unlock(t.Context()) }()
	require.Error(t, <-done)
	dialer.Set(redistest.Pass)
	poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
}

// Close does not wait for a Redis that hangs longer than the locks last. The timeouts are go-redis' own.
func TestClient_CloseDuringAHangTakesLittleLongerThanTheLease(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	for _, inFlight := range []int{0, 1, 50} {
		t.Run(fmt.Sprintf("%d calls in flight", inFlight), func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			c, err := redislock.New(server.Client(t), redislock.WithWheel(newWheel(t)))
			require.NoError(t, err)
			lease := redislock.WithLease(redistest.SafeLease)
			l := mustLock(t, c.Mutex("held", lease))
			server.Pause()
			defer server.Resume()
			var calls sync.WaitGroup
			for i := range inFlight {
				calls.Go(func() {
					_, err := c.Mutex(fmt.Sprintf("name:%d", i), lease).Lock(context.WithoutCancel(t.Context()))
					require.Error(t, err)
				})
			}
			poll(t, func() bool { return c.Stats().Waiting == inFlight })
			began := time.Now()
			require.Error(t, c.Close(t.Context()))
			require.Less(t, time.Since(began), redistest.SafeLease+2*time.Second)
			require.Error(t, l.Err())
			calls.Wait()
		})
	}
}

func TestClient_CloseWithAnEndedContextDoesNotWaitForAHangingRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c, err := redislock.New(server.Client(t), redislock.WithWheel(newWheel(t)))
	require.NoError(t, err)
	l := mustLock(t, c.Mutex(redistest.Name(t)))
	server.Pause()
	defer server.Resume()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	require.ErrorIs(t, c.Close(ctx), context.DeadlineExceeded)
	require.GreaterOrEqual(t, time.Since(began), time.Second, "it tries for a second")
	require.Less(t, time.Since(began), redislock.DefaultLease/2)
	require.ErrorIs(t, l.Err(), redislock.ErrClosed)
}

// Guarantees: L21.
func TestQuorum_CloseReleasesAlthoughItsContextHasEnded(t *testing.T) {
	t.Parallel()
	servers := startServers(t, 3)
	q, err := redislock.NewQuorum(servers.clients(t), redislock.WithWheel(newWheel(t)))
	require.NoError(t, err)
	name := redistest.Name(t)
	_, err = q.Mutex(name).Lock(within(t, patience))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, q.Close(ctx))
	for _, rdb := range servers.clients(t) {
		require.Zero(t, rdb.Exists(t.Context(), name).Val())
	}
}
