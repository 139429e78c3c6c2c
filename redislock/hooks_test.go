package redislock_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

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
		Acquired: note("acquired"), Contended: note("contended"),
		Renewed: note("renewed"), Lost: note("lost"), Released: note("released"),
	}))
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close(context.Background())) }()
	name := redistest.Name(t)
	m := c.Mutex(name, redislock.WithLease(safeLease), redislock.WithFencing())

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

// A gauge that Acquired increments and Lost and Released decrement returns to zero, however the locks end.
func TestHooks_EachAcquiredHasOneLostOrReleased(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	end := map[string]func(c *redislock.Client, name string, l *redislock.Lock) error{
		"Unlock": func(_ *redislock.Client, _ string, l *redislock.Lock) error { return l.Unlock(t.Context()) },
		"Close":  func(c *redislock.Client, _ string, _ *redislock.Lock) error { return c.Close(t.Context()) },
		"a loss": func(_ *redislock.Client, name string, l *redislock.Lock) error {
			err := rdb.Del(t.Context(), name).Err()
			<-l.Done()
			return err
		},
		"a loss and Close": func(c *redislock.Client, name string, l *redislock.Lock) error {
			err := rdb.Del(t.Context(), name).Err()
			<-l.Done()
			_ = c.Close(t.Context())
			return err
		},
	}
	for what, f := range end {
		for _, kind := range singleNameKinds {
			t.Run(kind+" by "+what, func(t *testing.T) {
				t.Parallel()
				var held, ended atomic.Int64
				done := func(redislock.Event) { held.Add(-1); ended.Add(1) }
				c := newClient(t, rdb, redislock.WithHooks(redislock.Hooks{
					Acquired: func(redislock.Event) { held.Add(1) }, Lost: done, Released: done,
				}))
				name := redistest.Name(t)
				l := mustTryLock(t, newMutex(c, kind, name, redislock.WithLease(safeLease)))
				require.EqualValues(t, 1, held.Load())
				require.NoError(t, f(c, name, l))
				poll(t, func() bool { return held.Load() == 0 })
				require.NoError(t, c.Close(t.Context()))
				require.EqualValues(t, 1, ended.Load(), "once")
				require.Zero(t, held.Load())
			})
		}
	}

	t.Run("a Quorum by Close", func(t *testing.T) {
		t.Parallel()
		var held atomic.Int64
		servers := []redis.UniversalClient{
			redistest.Start(t).Client(t), redistest.Start(t).Client(t), redistest.Start(t).Client(t),
		}
		hooks := redislock.Hooks{
			Acquired: func(redislock.Event) { held.Add(1) }, Released: func(redislock.Event) { held.Add(-1) },
		}
		q, err := redislock.NewQuorum(servers, redislock.WithWheel(newWheel(t)), redislock.WithHooks(hooks))
		require.NoError(t, err)
		mustTryLock(t, q.Mutex("name"))
		require.EqualValues(t, 1, held.Load())
		require.NoError(t, q.Close(t.Context()))
		poll(t, func() bool { return held.Load() == 0 })
	})
}
