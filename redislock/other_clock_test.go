package redislock_test

import (
	"context"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// go-redis compares the deadline of a context with the real time, as package net does.
func TestMutex_UnderAContextOfAnotherClock(t *testing.T) {
	t.Parallel()
	mock := clock.NewMock()
	mock.Set(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
	other, err := wheel.New(wheel.WithClock(mock))
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := other.Stop(context.Background())
		require.NoError(t, err)
	})
	for name, heeded := range map[string]bool{"go-redis heeds the deadline": true, "and does not": false} {
		t.Run(name, func(t *testing.T) {
			rdb := redistest.Shared(t).Client(t, func(o *redis.Options) { o.ContextTimeoutEnabled = heeded })
			ctx, cancel := other.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			require.NoError(t, rdb.Ping(ctx).Err())
			m := newClient(t, rdb).Mutex(redistest.Name(t))
			l, err := m.Lock(ctx)
			require.NoError(t, err)
			require.NoError(t, l.Unlock(ctx))

			mock.Add(time.Minute)
			<-ctx.Done()
			require.ErrorIs(t, rdb.Ping(ctx).Err(), context.DeadlineExceeded)
			_, err = m.Lock(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotErrorIs(t, err, redislock.ErrLocked)
		})
	}
}

// How long calls for a Quorum took is told by the clock of its wheel.
func TestQuorum_TellsTheTimeOfItsWheel(t *testing.T) {
	t.Parallel()
	const passes = 3 * time.Second
	mock := clock.NewMock()
	events := make(chan redislock.Event, 8)
	tell := func(e redislock.Event) { events <- e }
	f := startServers(t, 3)
	q, err := redislock.NewQuorum(f.clients(t), redislock.WithWheel(redistest.Wheel(t, wheel.WithClock(mock))),
		redislock.WithHooks(redislock.Hooks{Acquired: tell, Contended: tell, Failed: tell}))
	require.NoError(t, err)
	redistest.CloseWith(t, q.Close)
	held := mustLock(t, q.Mutex("a"))
	require.Zero(t, (<-events).Took)

	// A call that ends, and one that gets the lock.
	waits := func() (leave func(), ended <-chan error) {
		got := make(chan error, 1)
		leave = q.Mutex("a").LockFunc(t.Context(), func(l *redislock.Lock, err error) { got <- err })
		require.Zero(t, (<-events).Took, "contended")
		mock.Add(passes)
		return leave, got
	}
	leave, ended := waits()
	leave()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.Equal(t, passes, (<-events).Took)
	_, ended = waits()
	require.NoError(t, held.Unlock(t.Context()))
	redistest.Poll(t, func() bool { // the waiter looks again after a pause of the wheel
		mock.Add(passes / 15) // while the servers answer, the time of a vote must not pass
		return len(ended) > 0
	})
	require.NoError(t, <-ended)
	require.GreaterOrEqual(t, (<-events).Took, passes, "it is a time of the wheel")
}
