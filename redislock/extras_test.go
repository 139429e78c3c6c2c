package redislock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func TestMutex_WithOwner(t *testing.T) {
	t.Parallel()

	t.Run("the same owner enters again without a round trip, and leaves as often", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.Shared(t).Client(t)
		c, count := newCountedClient(t, rdb)
		name := redistest.Name(t)
		m := c.Mutex(name)
		ctx := redislock.WithOwner(t.Context(), &redislock.Owner{})
		first, err := m.Lock(ctx)
		require.NoError(t, err)
		asked := count.scriptCalls()
		again, err := m.Lock(ctx)
		require.NoError(t, err)
		tried, err := c.Mutex(name).TryLock(ctx)
		require.NoError(t, err)
		require.NoError(t, m.Do(ctx, func(context.Context) error { return nil }))
		require.Equal(t, asked, count.scriptCalls())
		requireHeldOnce(t, rdb, name)

		for _, l := range []*redislock.Lock{again, first} { // in any order
			require.True(t, tried.Valid())
			require.NoError(t, l.Unlock(ctx))
			require.NotEmpty(t, requireHeldOnce(t, rdb, name))
		}
		require.NoError(t, tried.Unlock(ctx))
		requireFree(t, rdb, name)
		for _, l := range []*redislock.Lock{first, again, tried} {
			require.ErrorIs(t, l.Unlock(ctx), redislock.ErrNotHeld)
		}
		next, err := m.Lock(ctx)
		require.NoError(t, err)
		require.NoError(t, next.Unlock(ctx))
	})

	t.Run("each Lock on a hold is unlocked once, and touches no other", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		ctx := redislock.WithOwner(t.Context(), &redislock.Owner{})
		outer, err := c.Mutex(name).Lock(ctx)
		require.NoError(t, err)
		inner, err := c.Mutex(name).Lock(ctx)
		require.NoError(t, err)
		outerCtx, innerCtx := outer.Context(t.Context()), inner.Context(t.Context())
		require.NoError(t, inner.Unlock(ctx))
		<-inner.Done()
		<-innerCtx.Done()
		require.ErrorIs(t, context.Cause(innerCtx), redislock.ErrNotHeld)
		require.ErrorIs(t, inner.Err(), redislock.ErrNotHeld)
		require.False(t, inner.Valid())
		for range 3 {
			require.ErrorIs(t, inner.Unlock(ctx), redislock.ErrNotHeld)
			require.ErrorIs(t, inner.Extend(ctx, time.Minute), redislock.ErrNotHeld)
		}
		require.NoError(t, outer.Err())
		require.NoError(t, outerCtx.Err())
		require.True(t, outer.Valid())
		require.False(t, isClosed(outer.Done()))
		requireHeldOnce(t, rdb, name)
		require.NoError(t, outer.Extend(ctx, time.Minute))
		require.NoError(t, outer.Unlock(ctx))
		<-outerCtx.Done()
		requireFree(t, rdb, name)
	})

	t.Run("a loss ends all of them, and the lock can be taken anew when all were unlocked", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		ctx := redislock.WithOwner(within(t, patience), &redislock.Owner{})
		lease := redislock.WithLease(time.Second)
		outer, err := c.Mutex(name, lease).Lock(ctx)
		require.NoError(t, err)
		inner, err := c.Mutex(name, lease).Lock(ctx)
		require.NoError(t, err)
		require.NoError(t, rdb.Del(t.Context(), name).Err())
		<-inner.Done()
		<-outer.Done()
		for _, l := range []*redislock.Lock{inner, outer} {
			_, err = c.Mutex(name, lease).Lock(ctx)
			require.ErrorIs(t, err, redislock.ErrLost)
			require.ErrorIs(t, l.Err(), redislock.ErrLost)
			require.ErrorIs(t, l.Unlock(ctx), redislock.ErrLost)
			require.ErrorIs(t, l.Err(), redislock.ErrLost)
		}
		next, err := c.Mutex(name, lease).Lock(ctx)
		require.NoError(t, err)
		require.NoError(t, next.Unlock(ctx))
	})
}

func TestLock_Extend(t *testing.T) {
	t.Parallel()

	t.Run("outlasts an outage longer than the lease", func(t *testing.T) {
		t.Parallel()
		server := redistest.Shared(t)
		dialer := &redistest.FaultDialer{}
		c := newClient(t, server.Client(t, func(o *redis.Options) { o.Dialer, o.ReadTimeout = dialer.Dial, time.Second }))
		name := redistest.Name(t)
		const lease = time.Second
		l := mustLock(t, c.Mutex(name, redislock.WithLease(lease)))
		require.NoError(t, l.Extend(t.Context(), time.Minute))
		dialer.Set(redistest.BlackholeUp)
		require.NoError(t, newWheel(t).Sleep(t.Context(), 3*lease))
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
			require.ErrorIs(t, l.Extend(t.Context(), d), redislock.ErrInvalid)
		}
		require.ErrorIs(t, l.Extend(nil, time.Minute), redislock.ErrInvalid) //nolint:staticcheck // on purpose
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, l.Extend(ctx, time.Minute), context.Canceled)
		require.NoError(t, l.Unlock(t.Context()))
	})
}

func TestMutex_WithMetadata(t *testing.T) {
	t.Parallel()
	with := redislock.WithMetadata("host:8080/job 7, ünï {x} :write m=")
	rdb := redistest.Shared(t).Client(t)
	c := newClient(t, rdb)
	t.Run("without it there is none", func(t *testing.T) {
		name := redistest.Name(t)
		require.NoError(t, rdb.HSet(t.Context(), name, "5e0c:17:write", 1).Err())
		s, err := c.Mutex(name).State(t.Context())
		require.NoError(t, err)
		require.Equal(t, []redislock.Holder{{ID: "5e0c:17:write"}}, s.Holders)
	})

	t.Run("a lock is not handed to a caller with another", func(t *testing.T) {
		name := redistest.Name(t)
		first := mustLock(t, c.Mutex(name, with))
		got := make(chan *redislock.Lock, 1)
		other := c.Mutex(name, redislock.WithMetadata("other"))
		other.LockFunc(t.Context(), func(l *redislock.Lock, err error) {
			if err != nil {
				t.Error(err)
			}
			got <- l
		})
		require.NoError(t, first.Unlock(t.Context()))
		second := <-got
		s, err := other.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, "other", s.Holders[0].Metadata)
		require.NoError(t, second.Unlock(t.Context()))
	})
}

func TestMutex_LockFunc(t *testing.T) {
	t.Parallel()
	type got struct {
		lock *redislock.Lock
		err  error
	}
	lock := func(ctx context.Context, m *redislock.Mutex) (<-chan got, func()) {
		results := make(chan got, 1)
		return results, m.LockFunc(ctx, func(l *redislock.Lock, err error) { results <- got{l, err} })
	}

	t.Run("calls back with the lock, at once or later", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		m := c.Mutex(name)
		results, cancel := lock(t.Context(), m)
		first := <-results
		require.NoError(t, first.err)
		cancel() // too late
		require.True(t, first.lock.Valid())
		results, _ = lock(t.Context(), m)
		require.NoError(t, first.lock.Unlock(t.Context()))
		second := <-results
		require.NoError(t, second.err)
		requireHeldOnce(t, rdb, name)
		require.NoError(t, second.lock.Unlock(t.Context()))
		requireFree(t, rdb, name)
	})

	t.Run("cancelled in time it calls back once, without the lock", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		m := c.Mutex(name)
		held := mustLock(t, m)
		results, cancel := lock(t.Context(), m)
		cancel()
		cancel()
		given := <-results
		require.Nil(t, given.lock)
		require.ErrorIs(t, given.err, context.Canceled)
		require.NoError(t, held.Unlock(t.Context()))
		require.NoError(t, c.Close(t.Context()))
		require.Empty(t, results)
		requireFree(t, rdb, name)
	})

	t.Run("tells why there is no lock", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		writeHold(t, rdb, name, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		ended, _ := lock(ctx, c.Mutex(name))
		closed, _ := lock(t.Context(), c.Mutex(name))
		invalid, _ := lock(t.Context(), c.Mutex(""))
		cancel()
		require.ErrorIs(t, (<-ended).err, context.Canceled)
		require.ErrorIs(t, (<-invalid).err, redislock.ErrInvalid)
		require.NoError(t, c.Close(t.Context()))
		require.ErrorIs(t, (<-closed).err, redislock.ErrClosed)
		require.Panics(t, func() { c.Mutex(name).LockFunc(t.Context(), nil) })
	})
}

func TestClient_WithHooks(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	var mu sync.Mutex
	events := map[string][]redislock.Event{}
	note := func(what string) func(redislock.Event) {
		return func(e redislock.Event) {
			mu.Lock()
			defer mu.Unlock()
			events[what] = append(events[what], e)
		}
	}
	of := func(what string) []redislock.Event {
		mu.Lock()
		defer mu.Unlock()
		return events[what]
	}
	c, err := redislock.New(rdb, redislock.WithWheel(newWheel(t)), redislock.WithHooks(redislock.Hooks{
		Acquired: note("acquired"), Contended: note("contended"), Renewed: note("renewed"), Lost: note("lost"), Released: note("released"),
	}))
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close(context.Background())) }()
	name := redistest.Name(t)
	m := c.Mutex(name, redislock.WithLease(time.Second), redislock.WithFencing())

	l := mustLock(t, m)
	require.Len(t, of("acquired"), 1)
	require.Equal(t, name, of("acquired")[0].Name)
	require.Equal(t, l.Token(), of("acquired")[0].Token)
	require.Positive(t, of("acquired")[0].Took)
	_, err = m.TryLock(t.Context())
	require.ErrorIs(t, err, redislock.ErrLocked)
	require.Len(t, of("contended"), 1)
	require.Positive(t, of("contended")[0].TTL)
	poll(t, func() bool { return len(of("renewed")) > 0 })
	require.Equal(t, name, of("renewed")[0].Name)
	require.NoError(t, l.Unlock(t.Context()))
	require.Len(t, of("released"), 1)
	require.GreaterOrEqual(t, of("released")[0].Took, time.Second/10)

	l = mustLock(t, m)
	require.NoError(t, rdb.Del(t.Context(), name).Err())
	<-l.Done()
	poll(t, func() bool { return len(of("lost")) > 0 })
	require.ErrorIs(t, of("lost")[0].Err, redislock.ErrLost)
	require.Equal(t, l.Token(), of("lost")[0].Token)
	require.Len(t, of("released"), 1, "a lost lock is not released")
}

func TestMutex_WithReplicas(t *testing.T) {
	t.Parallel()
	primary, replica := redistest.Start(t), redistest.Start(t)
	host, port, _ := strings.Cut(primary.Addr(), ":")
	require.NoError(t, replica.Client(t).ReplicaOf(t.Context(), host, port).Err())
	rdb := primary.Client(t)
	poll(t, func() bool { return rdb.Wait(t.Context(), 1, time.Second).Val() == 1 })
	c := newClient(t, rdb)

	t.Run("takes the lock when enough of them confirm it", func(t *testing.T) {
		name := redistest.Name(t)
		l, err := c.Mutex(name, redislock.WithReplicas(1, 10*time.Second)).Lock(t.Context())
		require.NoError(t, err)
		requireHeldOnce(t, replica.Client(t), name)
		require.NoError(t, l.Unlock(t.Context()))
	})

	t.Run("otherwise it is not held", func(t *testing.T) {
		name := redistest.Name(t)
		m := c.Mutex(name, redislock.WithReplicas(2, 50*time.Millisecond))
		for _, lock := range []func(context.Context) (*redislock.Lock, error){m.Lock, m.TryLock} {
			_, err := lock(t.Context())
			require.ErrorIs(t, err, redislock.ErrReplicas)
			require.NotErrorIs(t, err, redislock.ErrLocked)
			poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
		}
	})

	for _, opt := range []redislock.LockOption{
		redislock.WithReplicas(0, time.Second), redislock.WithReplicas(101, time.Second),
		redislock.WithReplicas(1, 0), redislock.WithReplicas(1, time.Hour),
		redislock.WithMaxHold(0), redislock.WithMaxHold(-1), redislock.WithMaxHold(400 * 24 * time.Hour),
		redislock.WithMetadata(""), redislock.WithMetadata("\xff"), redislock.WithMetadata(strings.Repeat("x", 257)),
		redislock.WithHandoff(-1, 0), redislock.WithHandoff(10001, 0), redislock.WithHandoff(1, -1), redislock.WithHandoff(1, time.Hour),
	} {
		t.Run("bad options are refused", func(t *testing.T) {
			_, err := c.Mutex("x", opt).TryLock(t.Context())
			require.ErrorIs(t, err, redislock.ErrInvalid)
			_, isInvalid := errors.AsType[*redislock.InvalidError](err)
			require.True(t, isInvalid)
		})
	}
}
