package redislock_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func TestFromContext_IsTheLockOfDo(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	c, name := newClient(t, rdb), redistest.Name(t)
	m := c.Mutex(name, redislock.WithFencing())
	type key struct{}
	var tokens []int64
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		err := m.Do(ctx, func(ctx context.Context) error {
			l := redislock.FromContext(context.WithValue(ctx, key{}, 1), name)
			require.True(t, l.Valid())
			require.Equal(t, name, l.Name())
			require.Nil(t, redislock.FromContext(ctx, "another"))
			tokens = append(tokens, l.Token())
			cancel() // the lock is released all the same
			return ctx.Err()
		})
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, redislock.ErrLost)
		requireFree(t, rdb, name)
	}
	require.Greater(t, tokens[1], tokens[0])

	err := m.Do(t.Context(), func(ctx context.Context) error {
		l := redislock.FromContext(ctx, name)
		_, err := m.ForceUnlock(t.Context())
		require.NoError(t, err)
		require.ErrorIs(t, l.Extend(ctx, time.Minute), redislock.ErrLost)
		<-ctx.Done()
		require.False(t, redislock.FromContext(ctx, name).Valid())
		return context.Cause(ctx)
	})
	require.ErrorIs(t, err, redislock.ErrLost)
}

func TestFromContext_IsTheInnermostLockOfTheName(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	name := redistest.Name(t)
	outer := newClient(t, rdb).RWMutex(name).Reader()
	inner := newClient(t, rdb).RWMutex(name).Reader()
	other := newClient(t, rdb).MultiMutex([]string{name + ":a", name + ":b"})
	require.NoError(t, outer.Do(t.Context(), func(ctx context.Context) error {
		first := redislock.FromContext(ctx, name)
		require.True(t, first.Valid())
		return inner.Do(ctx, func(ctx context.Context) error {
			second := redislock.FromContext(ctx, name)
			require.True(t, second.Valid())
			require.NotSame(t, first, second)
			return other.Do(ctx, func(ctx context.Context) error {
				require.Same(t, second, redislock.FromContext(ctx, name))
				l := mustLock(t, newClient(t, rdb).Mutex(name+":c"))
				require.Same(t, l, redislock.FromContext(l.Context(ctx), l.Name()))
				return l.Unlock(ctx)
			})
		})
	}))
	none := redislock.FromContext(t.Context(), name)
	require.Nil(t, none)
	require.Zero(t, none.Token())
	require.ErrorIs(t, none.Err(), redislock.ErrNotHeld)
}

// A lock that f has unlocked needs no release.
func TestFromContext_TheLockMayBeUnlockedInDo(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	var log bytes.Buffer
	c := newClient(t, rdb, redislock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	require.NoError(t, c.Mutex(name).Do(t.Context(), func(ctx context.Context) error {
		return redislock.FromContext(ctx, name).Unlock(ctx)
	}))
	require.Empty(t, log.String())
}
