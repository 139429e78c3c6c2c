package redislock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func TestMutex_TryLock(t *testing.T) {
	t.Parallel()

	t.Run("acquires and frees in Redisson's format", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		before := time.Now()
		l, err := c.Mutex(name).TryLock(t.Context())
		require.NoError(t, err)
		require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}:\d+$`,
			requireHeldOnce(t, rdb, name))
		require.Equal(t, name, l.Name())
		require.True(t, l.Valid())
		require.NoError(t, l.Err())
		require.False(t, isClosed(l.Done()))
		pttl, err := rdb.PTTL(t.Context(), name).Result()
		require.NoError(t, err)
		require.LessOrEqual(t, pttl, redislock.DefaultLease)
		require.WithinRange(t, l.Deadline(), before.Add(redislock.DefaultLease*9/10), before.Add(pttl+patience))
		require.Less(t, time.Until(l.Deadline()), pttl)

		require.NoError(t, l.Unlock(t.Context()))
		requireFree(t, rdb, name)
		require.False(t, l.Valid())
		require.True(t, isClosed(l.Done()))
		require.ErrorIs(t, l.Err(), redislock.ErrNotHeld)
	})

	t.Run("reports the remaining lease of another holder", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		other := newClient(t, rdb)
		held := mustLock(t, other.Mutex(name, redislock.WithLease(20*time.Second)))
		holder := requireHeldOnce(t, rdb, name)

		_, err := c.Mutex(name).TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrLocked)
		var locked *redislock.LockedError
		require.ErrorAs(t, err, &locked)
		require.Equal(t, name, locked.Name)
		require.Greater(t, locked.TTL, 10*time.Second)
		require.LessOrEqual(t, locked.TTL, 20*time.Second)
		require.Equal(t, holder, requireHeldOnce(t, rdb, name))

		require.NoError(t, held.Unlock(t.Context()))
		l, err := c.Mutex(name).TryLock(t.Context())
		require.NoError(t, err)
		require.NoError(t, l.Unlock(t.Context()))
	})

	t.Run("is not reentrant without an Owner", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		m := c.Mutex(name)
		first := mustLock(t, m)
		_, err := m.TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrLocked)
		requireHeldOnce(t, rdb, name)
		require.NoError(t, first.Unlock(t.Context()))
		second := mustLock(t, m)
		require.ErrorIs(t, first.Unlock(t.Context()), redislock.ErrNotHeld, "an old handle")
		requireHeldOnce(t, rdb, name)
		require.NoError(t, second.Unlock(t.Context()))
	})
}

// Guarantees: L8.
func TestLock_Unlock(t *testing.T) {
	t.Parallel()

	t.Run("of a nil or zero Lock returns ErrNotHeld", func(t *testing.T) {
		t.Parallel()
		for _, l := range []*redislock.Lock{nil, {}} {
			require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrNotHeld)
			require.ErrorIs(t, l.Err(), redislock.ErrNotHeld)
			require.True(t, isClosed(l.Done()))
			require.False(t, l.Valid())
			require.Zero(t, l.Deadline())
			require.Empty(t, l.Name())
			require.ErrorIs(t, context.Cause(l.Context(t.Context())), redislock.ErrNotHeld)
		}
	})

	t.Run("without a deadline or cancellation needs no goroutine", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		l, err := c.Mutex(name).Lock(context.Background())
		require.NoError(t, err)
		require.NoError(t, l.Unlock(context.Background()))
		requireFree(t, rdb, name)
	})
}

func TestMutex_Do(t *testing.T) {
	t.Parallel()

	t.Run("holds the lock while the function runs", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		errMine := errors.New("mine")
		var inside context.Context
		err := c.Mutex(name).Do(t.Context(), func(ctx context.Context) error {
			inside = ctx
			requireHeldOnce(t, rdb, name)
			require.NoError(t, ctx.Err())
			return errMine
		})
		require.Equal(t, errMine, err)
		<-inside.Done()
		require.ErrorIs(t, context.Cause(inside), redislock.ErrNotHeld)
		requireFree(t, rdb, name)
	})

	t.Run("ends the function's context with ErrLost when the lock is lost", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		err := c.Mutex(name, redislock.WithLease(safeLease)).Do(t.Context(), func(ctx context.Context) error {
			require.NoError(t, rdb.Del(ctx, name).Err())
			<-ctx.Done()
			return context.Cause(ctx)
		})
		require.ErrorIs(t, err, redislock.ErrLost)
	})

	t.Run("reports a loss that the function did not notice", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		err := c.Mutex(name).Do(t.Context(), func(ctx context.Context) error {
			return rdb.Del(ctx, name).Err()
		})
		require.ErrorIs(t, err, redislock.ErrLost)
	})

	t.Run("unlocks although its context has ended", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		ctx, cancel := context.WithCancel(t.Context())
		err := c.Mutex(name).Do(ctx, func(inside context.Context) error {
			cancel()
			<-inside.Done()
			return inside.Err()
		})
		require.Equal(t, context.Canceled, err)
		requireFree(t, rdb, name)
	})
}

func TestLock_WithoutRenewal(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	const lease = time.Second // short: its end is awaited
	start := time.Now()
	l := mustLock(t, c.Mutex(name, redislock.WithLease(lease), redislock.WithoutRenewal()))
	deadline := l.Deadline()
	<-l.Done()
	require.WithinRange(t, time.Now(), deadline, start.Add(lease+patience))
	require.ErrorIs(t, l.Err(), redislock.ErrLost)
	require.False(t, l.Valid())
	other := mustLock(t, newClient(t, rdb).Mutex(name))
	require.NoError(t, other.Unlock(t.Context()))
}

// Guarantees: L15.
func TestLock_Extend(t *testing.T) {
	t.Parallel()

	t.Run("keeps the lock through an outage longer than the lease", func(t *testing.T) {
		skipIfShort(t)
		t.Parallel()
		server := redistest.Shared(t)
		dialer := &redistest.FaultDialer{}
		c := newClient(t, server.Client(t, func(o *redis.Options) {
			o.Dialer, o.ReadTimeout = dialer.Dial, time.Second
		}))
		name := redistest.Name(t)
		const lease = safeLease
		l := mustLock(t, c.Mutex(name, redislock.WithLease(lease)))
		require.NoError(t, l.Extend(t.Context(), time.Minute))
		dialer.Set(redistest.BlackholeUp)
		require.NoError(t, newWheel(t).Sleep(t.Context(), lease+time.Second))
		require.True(t, l.Valid())
		dialer.Set(redistest.Pass)
		dialer.Reset()
		require.NoError(t, l.Unlock(t.Context()))
	})

	t.Run("refuses bad input", func(t *testing.T) {
		t.Parallel()
		c, _, name := onSharedServer(t)
		l := mustLock(t, c.Mutex(name))
		for _, d := range []time.Duration{0, -1, 1, time.Millisecond - 1, 365*24*time.Hour + 1} {
			require.ErrorIs(t, l.Extend(t.Context(), d), cogwheel.ErrInvalid)
		}
		require.ErrorIs(t, l.Extend(nil, time.Minute), cogwheel.ErrInvalid) //nolint:staticcheck // on purpose
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, l.Extend(ctx, time.Minute), context.Canceled)
		require.NoError(t, l.Unlock(t.Context()))
	})
}
