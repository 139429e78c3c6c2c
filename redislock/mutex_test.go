package redislock_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func TestMutex_TryLock(t *testing.T) {
	t.Parallel()

	t.Run("takes a free lock in Redisson's form and frees it", func(t *testing.T) {
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

	t.Run("says how long another still holds it", func(t *testing.T) {
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

	t.Run("is not reentrant: a hold belongs to its handle", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		m := c.Mutex(name)
		first := mustLock(t, m)
		_, err := m.TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrLocked)
		requireHeldOnce(t, rdb, name)
		require.NoError(t, first.Unlock(t.Context()))
		second := mustLock(t, m)
		require.ErrorIs(t, first.Unlock(t.Context()), redislock.ErrNotHeld, "a stale handle")
		requireHeldOnce(t, rdb, name)
		require.NoError(t, second.Unlock(t.Context()))
	})
}

func TestLock_Unlock(t *testing.T) {
	t.Parallel()

	t.Run("of a nil or zero Lock is ErrNotHeld", func(t *testing.T) {
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
		err := c.Mutex(name, redislock.WithLease(time.Second)).Do(t.Context(), func(ctx context.Context) error {
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

	t.Run("unlocks when the function panics", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		require.PanicsWithValue(t, "boom", func() {
			_ = c.Mutex(name).Do(t.Context(), func(context.Context) error { panic("boom") })
		})
		requireFree(t, rdb, name)
	})

	t.Run("unlocks when the function ends its goroutine", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = c.Mutex(name).Do(t.Context(), func(context.Context) error { runtime.Goexit(); return nil })
		}()
		<-done
		requireFree(t, rdb, name)
	})
}

func TestLock_WithoutRenewal(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	const lease = time.Second
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

func TestRedislock_RefusesBadInput(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	dialer := &redistest.FaultDialer{}
	rdb := server.Client(t, func(o *redis.Options) { o.Dialer = dialer.Dial })
	c := newClient(t, rdb)
	name := redistest.Name(t)
	nothing := func(context.Context) error { return nil }

	endless := redis.NewClient(&redis.Options{ReadTimeout: -1})
	defer endless.Close()
	construct := func(rdb redis.UniversalClient, opts ...redislock.Option) error {
		_, err := redislock.New(rdb, opts...)
		return err
	}
	for what, tt := range map[string]struct {
		err   error
		field string
		value any
	}{
		"no client":                {construct(nil), "client", "nil"},
		"a nil *redis.Client":      {construct((*redis.Client)(nil)), "client", "nil"},
		"a nil option":             {construct(rdb, nil), "option", 0},
		"a nil wheel":              {construct(rdb, redislock.WithWheel(nil)), "WithWheel", "nil"},
		"a nil logger":             {construct(rdb, redislock.WithLogger(nil)), "WithLogger", "nil"},
		"a nil function":           {c.Mutex(name).Do(t.Context(), nil), "function", "nil"},
		"a nil context":            {c.Mutex(name).Do(nil, nothing), "context", "nil"}, //nolint:staticcheck // on purpose
		"a bad default":            {construct(rdb, redislock.WithLockDefaults(redislock.WithLease(0))), "WithLease", time.Duration(0)},
		"a nil default":            {construct(rdb, redislock.WithLockDefaults(nil)), "option", 0},
		"a poll too short":         {construct(rdb, redislock.WithPoll(time.Millisecond)), "WithPoll", time.Millisecond},
		"a client without timeout": {construct(endless), "client", "without a ReadTimeout"},
		"a nil lock option":        {c.Mutex(name, nil).Do(t.Context(), nothing), "option", 0},
		"no lease":                 {c.Mutex(name, redislock.WithLease(0)).Do(t.Context(), nothing), "WithLease", time.Duration(0)},
		"a negative lease":         {c.Mutex(name, redislock.WithLease(-time.Second)).Do(t.Context(), nothing), "WithLease", -time.Second},
		"a lease of a nanosecond":  {c.Mutex(name, redislock.WithLease(1)).Do(t.Context(), nothing), "WithLease", time.Nanosecond},
		"a lease below 1 ms":       {c.Mutex(name, redislock.WithLease(time.Millisecond-1)).Do(t.Context(), nothing), "WithLease", time.Millisecond - 1},
		"a lease above 365 days":   {c.Mutex(name, redislock.WithLease(365*24*time.Hour+1)).Do(t.Context(), nothing), "WithLease", 365*24*time.Hour + 1},
		"the longest duration":     {c.Mutex(name, redislock.WithLease(1<<63-1)).Do(t.Context(), nothing), "WithLease", time.Duration(1<<63 - 1)},
		"an empty name":            {c.Mutex("").Do(t.Context(), nothing), "name", `""`},
		"a name above 64 KiB":      {c.Mutex(strings.Repeat("x", 64<<10+1)).Do(t.Context(), nothing), "name", `"` + strings.Repeat("x", 128) + `"...`},
		"a name with an open tag":  {c.Mutex("a{b").Do(t.Context(), nothing), "name", `"a{b"`},
		"a name with an empty tag": {c.Mutex("{}").Do(t.Context(), nothing), "name", `"{}"`},
	} {
		t.Run(what, func(t *testing.T) {
			require.ErrorIs(t, tt.err, redislock.ErrInvalid)
			var invalid *redislock.InvalidError
			require.ErrorAs(t, tt.err, &invalid)
			require.Equal(t, tt.field, invalid.Field)
			require.Equal(t, tt.value, invalid.Value)
		})
	}

	t.Run("by every method", func(t *testing.T) {
		bad := c.Mutex("")
		_, err := bad.Lock(t.Context())
		require.ErrorIs(t, err, redislock.ErrInvalid)
		_, err = bad.TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrInvalid)
	})

	t.Run("an ended context", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		errWhy := errors.New("why")
		cancel(errWhy)
		_, err := c.Mutex(name).Lock(ctx)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, errWhy)
		require.NotErrorIs(t, err, redislock.ErrLocked)
	})

	require.Zero(t, dialer.Conns(), "nothing was sent to Redis")
}
