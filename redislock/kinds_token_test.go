package redislock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func tokensRise(t *testing.T, s *subject) {
	fenced := redislock.WithFencing()
	var last int64
	for _, end := range []func(*redislock.Lock){
		func(l *redislock.Lock) { mustUnlock(t, l) },
		func(*redislock.Lock) {
			require.NoError(t, s.rdb.PExpire(t.Context(), s.name, time.Millisecond).Err())
			poll(t, func() bool { return s.rdb.Exists(t.Context(), s.name).Val() == 0 })
		},
		func(*redislock.Lock) {
			freed, err := s.mutexOf(s.client(t)).ForceUnlock(t.Context())
			require.NoError(t, err)
			require.True(t, freed)
		},
		func(*redislock.Lock) { // as when all data is lost
			require.NoError(t, s.rdb.Del(t.Context(), s.name).Err())
			require.NoError(t, s.rdb.Del(t.Context(), scripts.LockFence(s.name)).Err())
		},
		func(l *redislock.Lock) { // a service in Java counts on
			mustUnlock(t, l)
			require.NoError(t, s.rdb.IncrBy(t.Context(), scripts.LockFence(s.name), 1_000_000_000).Err())
			last += 1_000_000_000
		},
		func(l *redislock.Lock) { mustUnlock(t, l) },
	} {
		l := s.take(t, fenced)
		require.Greater(t, l.Token(), last)
		last = l.Token()
		end(l)
	}
	l := s.take(t, fenced)
	require.Greater(t, l.Token(), last)
}

func tokensRiseFromCallerToCaller(t *testing.T, s *subject) {
	var tokens []int64 // guarded by the lock
	var running sync.WaitGroup
	for _, c := range []*redislock.Client{s.client(t), s.client(t)} {
		m := s.of(c, redislock.WithFencing())
		for range 15 {
			running.Go(func() {
				l, err := m.Lock(within(t, patience))
				if err != nil {
					t.Error(err)
					return
				}
				tokens = append(tokens, l.Token())
				if err := l.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
	running.Wait()
	require.True(t, slices.IsSorted(tokens), "%v", tokens)
	require.Len(t, slices.Compact(tokens), 30)
}

func refusesAFenceThatIsNoNumber(t *testing.T, s *subject) {
	require.NoError(t, s.rdb.Set(t.Context(), scripts.LockFence(s.name), "x", 0).Err())
	for _, lock := range []func(context.Context) (*redislock.Lock, error){
		s.of(s.client(t), redislock.WithFencing()).TryLock, s.of(s.client(t), redislock.WithFencing()).Lock,
	} {
		_, err := lock(within(t, patience))
		require.ErrorIs(t, err, redislock.ErrWrongKind)
		s.requireNoTrace(t)
	}
	mustUnlock(t, s.take(t))
}

func noTokenWithoutFencing(t *testing.T, s *subject) {
	l := s.take(t)
	require.Zero(t, l.Token())
	mustUnlock(t, l)
	require.Empty(t, s.keys(t, s.name))
	if s.kind != "read" {
		return
	}
	c := s.client(t)
	rw := c.RWMutex(s.name, redislock.WithFencing())
	require.Zero(t, mustRead(t, c.RWMutex(fmt.Sprint(s.name, ":2"), redislock.WithFencing())).Token(), "tokens go to writers")
	w := mustWrite(t, rw)
	r, err := rw.Downgrade(t.Context(), w)
	require.NoError(t, err)
	mustUnlock(t, r)
	require.Greater(t, mustWrite(t, rw).Token(), w.Token())
}
