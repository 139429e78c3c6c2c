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
