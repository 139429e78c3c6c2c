package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// Guarantees: L34.
func tokensIncrease(t *testing.T, lut *lockUnderTest) {
	fenced := redislock.WithFencing()
	var last int64
	for _, end := range []func(*redislock.Lock){
		func(l *redislock.Lock) { mustUnlock(t, l) },
		func(*redislock.Lock) {
			require.NoError(t, lut.rdb.PExpire(t.Context(), lut.name, time.Millisecond).Err())
			poll(t, func() bool { return lut.rdb.Exists(t.Context(), lut.name).Val() == 0 })
		},
		func(*redislock.Lock) {
			freed, err := lut.partMutex(lut.newClient(t)).ForceUnlock(t.Context())
			require.NoError(t, err)
			require.True(t, freed)
		},
		func(*redislock.Lock) { // all data is lost
			require.NoError(t, lut.rdb.Del(t.Context(), lut.name).Err())
			require.NoError(t, lut.rdb.Del(t.Context(), scripts.LockFence(lut.name)).Err())
		},
		func(l *redislock.Lock) { // a Java service increments the counter
			mustUnlock(t, l)
			require.NoError(t, lut.rdb.IncrBy(t.Context(), scripts.LockFence(lut.name), 1_000_000_000).Err())
			last += 1_000_000_000
		},
		func(l *redislock.Lock) { mustUnlock(t, l) },
	} {
		l := lut.mustLock(t, fenced)
		require.Greater(t, l.Token(), last)
		last = l.Token()
		end(l)
	}
	l := lut.mustLock(t, fenced)
	require.Greater(t, l.Token(), last)
}

// Redisson's RFencedLock increments the counter and leaves its expiry alone.
// Guarantees: L34.
func tokensIncreaseInJavaToo(t *testing.T, lut *lockUnderTest) {
	counter := scripts.LockFence(lut.name)
	java := func() int64 { return lut.rdb.Incr(t.Context(), counter).Val() }
	expires := func() bool { return lut.rdb.PTTL(t.Context(), counter).Val() > 0 }
	take := func(fencing redislock.LockOption) int64 {
		l := lut.mustLock(t, fencing)
		defer mustUnlock(t, l)
		return l.Token()
	}

	require.EqualValues(t, 1, java())
	token := take(redislock.WithFencing())
	require.Greater(t, token, int64(1))
	require.False(t, expires(), "Java made the counter")
	require.Greater(t, java(), token)

	require.NoError(t, lut.rdb.Del(t.Context(), counter).Err())
	token = take(redislock.WithFencing())
	require.True(t, expires(), "Go made the counter, and does not know of Java")
	require.Greater(t, take(redislock.WithJavaFencing()), token)
	require.False(t, expires())
	last := java()
	require.NoError(t, lut.rdb.Del(t.Context(), counter).Err())
	token = take(redislock.WithJavaFencing())
	require.Greater(t, token, last)
	require.False(t, expires())
	require.Greater(t, java(), token)
}

// Guarantees: L34.
func tokensIncreaseFromCallerToCaller(t *testing.T, lut *lockUnderTest) {
	var tokens []int64 // guarded by the lock
	var running sync.WaitGroup
	for _, c := range []*redislock.Client{lut.newClient(t), lut.newClient(t)} {
		m := lut.mutex(c, redislock.WithFencing())
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

func refusesTokenCounterThatIsNoNumber(t *testing.T, lut *lockUnderTest) {
	require.NoError(t, lut.rdb.Set(t.Context(), scripts.LockFence(lut.name), "x", 0).Err())
	for _, lock := range []func(context.Context) (*redislock.Lock, error){
		lut.mutex(
			lut.newClient(t), redislock.WithFencing(),
		).TryLock, lut.mutex(lut.newClient(t), redislock.WithFencing()).Lock,
	} {
		_, err := lock(within(t, patience))
		require.ErrorIs(t, err, redislock.ErrWrongKind)
		lut.requireNoKeys(t)
	}
	mustUnlock(t, lut.mustLock(t))
}

func noTokenWithoutFencing(t *testing.T, lut *lockUnderTest) {
	l := lut.mustLock(t)
	require.Zero(t, l.Token())
	mustUnlock(t, l)
	require.Empty(t, lut.keysWith(t, lut.name))
	if lut.kind != "read" {
		return
	}
	c := lut.newClient(t)
	rw := c.RWMutex(lut.name, redislock.WithFencing())
	require.Zero(t, mustRLock(
		t, c.RWMutex(fmt.Sprint(lut.name, ":2"), redislock.WithFencing()),
	).Token(), "readers get no token")
	w := mustWLock(t, rw)
	r, err := rw.Downgrade(t.Context(), w)
	require.NoError(t, err)
	mustUnlock(t, r)
	require.Greater(t, mustWLock(t, rw).Token(), w.Token())
}

// Tokens are reserved for hand-overs among many waiters. Redis loses all data right after they were used.
// Guarantees: L34.
func TestMutex_TokensIncreaseAfterDataLossDespiteReservedTokens(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	c := newClient(t, rdb)
	m := c.Mutex("orders", redislock.WithFencing(), redislock.WithHandoff(10_000, time.Minute))
	const waiters, rounds = 300, 40
	highest := int64(0)
	for range rounds {
		first := mustLock(t, m)
		require.Greater(t, first.Token(), highest, "greater than before the loss")
		highest = first.Token()
		got := make(chan *redislock.Lock)
		for range waiters {
			m.LockFunc(t.Context(), func(l *redislock.Lock, err error) {
				if err != nil && !errors.Is(err, redislock.ErrClosed) {
					t.Error(err)
				}
				got <- l
			})
		}
		mustUnlock(t, first)
		for range waiters {
			l := <-got
			require.Greater(t, l.Token(), highest)
			highest = l.Token()
			mustUnlock(t, l)
		}
		require.NoError(t, rdb.FlushAll(t.Context()).Err())
	}
}
