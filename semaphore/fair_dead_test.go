package semaphore_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// deadWaiters queues requests for one permit each whose processes have died, in front of all others.
func deadWaiters(t *testing.T, rdb redis.UniversalClient, name string, n int) {
	t.Helper()
	part := func(p string) string { return scripts.SuffixName(name, "fair:"+p) }
	_, err := rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		for i := range n {
			id := fmt.Sprintf("%016d", i)
			p.ZAdd(t.Context(), part("queue"), redis.Z{Score: float64(i - n), Member: id})
			p.ZAdd(t.Context(), part("alive"), redis.Z{Score: 1, Member: id})
			p.HSet(t.Context(), part("needs"), id, strings.Repeat("0", 32)+id)
		}
		return nil
	})
	require.NoError(t, err)
}

// requireNoQueue checks that no key of the queue is left.
func requireNoQueue(t *testing.T, rdb redis.UniversalClient, name string) {
	t.Helper()
	for _, p := range []string{"queue", "alive", "needs"} {
		require.Zero(t, rdb.Exists(t.Context(), scripts.SuffixName(name, "fair:"+p)).Val(), p)
	}
}

// Requests whose processes have died keep no permits from others, and are not counted.
func TestFair_DeadWaitersCountForNothing(t *testing.T) {
	t.Parallel()
	for what, opts := range map[string][]semaphore.Option{
		"": nil, "with an idle expiry": {semaphore.WithIdleExpiry(time.Hour)},
	} {
		for _, dead := range []int{1, 3} {
			t.Run(fmt.Sprint(dead, what), func(t *testing.T) {
				t.Parallel()
				_, rdb, name := newSharedClient(t)
				s := newClient(t, rdb, opts...).FairSemaphore(name)
				require.NoError(t, rdb.Set(t.Context(), scripts.SuffixName(name, "fair:permits"), 2, 0).Err())
				deadWaiters(t, rdb, name, dead)
				state, err := s.State(t.Context())
				require.NoError(t, err)
				require.Zero(t, state.Waiting)
				first, err := s.TryAcquire(t.Context(), 1)
				require.NoError(t, err)
				requireNoQueue(t, rdb, name)

				deadWaiters(t, rdb, name, dead)
				second := mustAcquire(t, s, 1)
				requireNoQueue(t, rdb, name)

				deadWaiters(t, rdb, name, dead)
				_, err = s.TryAcquire(t.Context(), 1)
				require.ErrorIs(t, err, semaphore.ErrNoPermits)
				requireNoQueue(t, rdb, name)

				deadWaiters(t, rdb, name, dead)
				require.NoError(t, first.Release(t.Context()))
				requireNoQueue(t, rdb, name)
				require.NoError(t, second.Release(t.Context()))
				state, err = s.State(t.Context())
				require.NoError(t, err)
				require.EqualValues(t, 2, state.Free)
			})
		}
	}
}

// A living request behind dead ones keeps its place.
func TestFair_TryAcquireDoesNotOvertakeTheLivingBehindTheDead(t *testing.T) {
	t.Parallel()
	c, rdb, name := newSharedClient(t)
	s := c.FairSemaphore(name)
	mustSetPermits(t, s, 2)
	first, second := mustAcquire(t, s, 1), mustAcquire(t, s, 1)
	got := make(chan *semaphore.Grant, 1)
	s.AcquireFunc(t.Context(), 2, func(g *semaphore.Grant, err error) { got <- g })
	state := func() semaphore.State {
		state, err := s.State(t.Context())
		require.NoError(t, err)
		return state
	}
	poll(t, func() bool { return state().Waiting == 1 })
	deadWaiters(t, rdb, name, 2)
	require.EqualValues(t, 1, state().Waiting)
	other := newClient(t, rdb).FairSemaphore(name)
	require.NoError(t, first.Release(t.Context()))
	_, err := other.TryAcquire(t.Context(), 1)
	require.ErrorIs(t, err, semaphore.ErrNoPermits, "one is free, but another needs it")
	require.NoError(t, second.Release(t.Context()))
	require.NoError(t, (<-got).Release(t.Context()))
}

// The keys of a queue end with the last process that counts as alive.
func TestFair_AQueueOfTheDeadExpires(t *testing.T) {
	t.Parallel()
	c, rdb, name := newSharedClient(t)
	s := c.FairSemaphore(name)
	mustSetPermits(t, s, 1)
	held := mustAcquire(t, s, 1)
	got := make(chan *semaphore.Grant, 1)
	s.AcquireFunc(t.Context(), 1, func(g *semaphore.Grant, err error) { got <- g })
	part := func(p string) string { return scripts.SuffixName(name, "fair:"+p) }
	poll(t, func() bool { return rdb.ZCard(t.Context(), part("queue")).Val() == 1 })
	for _, p := range []string{"queue", "alive", "needs"} {
		left := rdb.PTTL(t.Context(), part(p)).Val()
		require.Positive(t, left, p)
		require.Less(t, left, time.Hour, p)
	}
	require.NoError(t, held.Release(t.Context()))
	require.NoError(t, (<-got).Release(t.Context()))
}
