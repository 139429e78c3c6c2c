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
			l := m.FromContext(context.WithValue(ctx, key{}, 1))
			require.True(t, l.Valid())
			require.Equal(t, name, l.Name())
			require.Same(t, l, c.Mutex(name).FromContext(ctx), "the name decides")
			require.Nil(t, c.Mutex("another").FromContext(ctx))
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
		l := m.FromContext(ctx)
		_, err := m.ForceUnlock(t.Context())
		require.NoError(t, err)
		require.ErrorIs(t, l.Extend(ctx, time.Minute), redislock.ErrLost)
		<-ctx.Done()
		require.False(t, m.FromContext(ctx).Valid())
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
		first := outer.FromContext(ctx)
		require.True(t, first.Valid())
		return inner.Do(ctx, func(ctx context.Context) error {
			second := inner.FromContext(ctx)
			require.True(t, second.Valid())
			require.NotSame(t, first, second)
			return other.Do(ctx, func(ctx context.Context) error {
				require.Same(t, second, inner.FromContext(ctx))
				m := newClient(t, rdb).Mutex(name + ":c")
				l := mustLock(t, m)
				require.Same(t, l, m.FromContext(l.Context(ctx)))
				return l.Unlock(ctx)
			})
		})
	}))
	none := outer.FromContext(t.Context())
	require.Nil(t, none)
	require.Zero(t, none.Token())
	require.ErrorIs(t, none.Err(), redislock.ErrNotHeld)
}

// A MultiMutex has a Lock of its own, in whatever order its names are given.
func TestFromContext_OfAMultiMutex(t *testing.T) {
	t.Parallel()
	c, _, name := onSharedServer(t)
	m := c.MultiMutex([]string{name + ":a", name + ":b"})
	require.NoError(t, m.Do(t.Context(), func(ctx context.Context) error {
		l := m.FromContext(ctx)
		require.True(t, l.Valid())
		require.Same(t, l, c.MultiMutex([]string{name + ":b", name + ":a"}).FromContext(ctx))
		require.Nil(t, c.MultiMutex([]string{name + ":a"}).FromContext(ctx))
		for _, other := range []string{l.Name(), name + ":a"} {
			require.Nil(t, c.Mutex(other).FromContext(ctx))
		}
		return nil
	}))
	require.Nil(t, m.FromContext(t.Context()))
}

// A writer may read, and a reader must not take its Lock for that of a writer.
func TestFromContext_OfTheSidesOfAnRWMutex(t *testing.T) {
	t.Parallel()
	c, _, name := onSharedServer(t)
	rw := c.RWMutex(name, redislock.WithFencing())
	task := redislock.ContextWithOwner(t.Context(), &redislock.Owner{})
	require.NoError(t, rw.Reader().Do(task, func(ctx context.Context) error {
		require.True(t, rw.Reader().FromContext(ctx).Valid())
		require.Nil(t, rw.Writer().FromContext(ctx))
		return nil
	}))
	require.NoError(t, rw.Writer().Do(task, func(ctx context.Context) error {
		l := rw.Writer().FromContext(ctx)
		require.Positive(t, l.Token())
		require.Same(t, l, rw.Reader().FromContext(ctx))
		return rw.Reader().Do(ctx, func(ctx context.Context) error {
			inner := rw.Reader().FromContext(ctx)
			require.NotSame(t, l, inner)
			require.Same(t, inner, rw.Writer().FromContext(ctx), "the Owner holds it as the writer")
			require.Equal(t, l.Token(), inner.Token())
			return nil
		})
	}))
}

// The context of a nil Lock has no lock.
func TestFromContext_OfANilLock(t *testing.T) {
	t.Parallel()
	c, _, name := onSharedServer(t)
	for _, none := range []*redislock.Lock{nil, {}} {
		ctx := none.Context(t.Context())
		require.Nil(t, c.Mutex(name).FromContext(ctx))
		require.Nil(t, c.RWMutex("").Writer().FromContext(ctx))
	}
}

// A lock that f has unlocked needs no release.
func TestFromContext_TheLockMayBeUnlockedInDo(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	var log bytes.Buffer
	c := newClient(t, rdb, redislock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	m := c.Mutex(name)
	require.NoError(t, m.Do(t.Context(), func(ctx context.Context) error {
		return m.FromContext(ctx).Unlock(ctx)
	}))
	require.Empty(t, log.String())
}
