package redislock_test

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func TestStats_KeepTheLastError(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	options := func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 }
	locks, err := redislock.New(server.Client(t, options), redislock.WithWheel(redistest.Wheel(t)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = locks.Close(context.Background()) })
	m := locks.Mutex("n", redislock.WithLease(redistest.SafeLease))
	_, err = m.Lock(t.Context())
	require.NoError(t, err)
	_, err = m.TryLock(t.Context())
	require.ErrorIs(t, err, redislock.ErrLocked)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = m.Lock(ended)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, locks.Stats().Err, "neither a held lock nor the end of a context is kept")
	require.Zero(t, locks.Stats().ErrAt)

	server.Kill()
	redistest.Poll(t, func() bool { return locks.Stats().Err != nil }) // of a renewal: no other call is made
	s := locks.Stats()
	require.ErrorContains(t, s.Err, "redislock: renew: ")
	require.NotZero(t, s.ErrAt)
	_, err = locks.Mutex("other").TryLock(t.Context())
	require.Error(t, err)
	redistest.Poll(t, func() bool { return locks.Stats().Lost == 1 }) // renewals are over
	_, err = locks.Mutex("other").TryLock(t.Context())
	require.Error(t, err)
	require.Equal(t, err, locks.Stats().Err)
	require.True(t, locks.Stats().ErrAt.After(s.ErrAt))
}
