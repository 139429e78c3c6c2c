package semaphore_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

func TestSemaphore_State(t *testing.T) {
	t.Parallel()
	for kind, open := range map[string]func(*semaphore.Client, string, int64, ...semaphore.SemaphoreOption) *semaphore.Semaphore{
		"Semaphore":     (*semaphore.Client).Semaphore,
		"FairSemaphore": (*semaphore.Client).FairSemaphore,
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c, rdb, name := newSharedClient(t)
			ctx, leases := t.Context(), scripts.SuffixName(name, "timeout")
			if kind == "FairSemaphore" {
				leases = scripts.SuffixName(name, "fair:leases")
			}
			s := open(c, name, 0, semaphore.WithLease(time.Hour), semaphore.WithoutRenewal())
			state, err := s.State(ctx)
			require.NoError(t, err)
			require.Equal(t, semaphore.State{}, state)

			setter := newClient(t, rdb)
			set, err := open(setter, name, 0).TrySetPermits(ctx, 5)
			require.NoError(t, err)
			require.True(t, set)
			require.NoError(t, setter.Close(ctx)) // in the background, it assigns the permits of a FairSemaphore, and reclaims
			grant, err := s.Acquire(ctx, 2)
			require.NoError(t, err)
			state, err = s.State(ctx)
			require.NoError(t, err)
			require.ElementsMatch(t, grant.IDs(), []string{state.Permits[0].ID, state.Permits[1].ID})
			require.InDelta(t, time.Hour, state.Permits[0].Lease, float64(time.Minute))
			require.Equal(t, semaphore.State{
				IsSet: true, Free: 3, Held: 2, Permits: state.Permits, Token: grant.Token(),
			}, state)

			// A permit whose lease has ended, and one of Redisson's that never ends.
			require.NoError(t, rdb.Do(ctx, "ZADD", leases, 1, strings.Repeat("a", 16), int64(922337203685477), strings.Repeat("b", 16)).Err())
			before := rdb.Dump(ctx, leases).Val()
			state, err = s.State(ctx)
			require.NoError(t, err)
			require.EqualValues(t, 4, state.Free)
			require.EqualValues(t, 3, state.Held)
			require.Equal(t, semaphore.Permit{ID: strings.Repeat("62", 16), Lease: semaphore.Forever}, state.Permits[2])
			require.Equal(t, before, rdb.Dump(ctx, leases).Val(), "nothing is reclaimed")
			require.NoError(t, rdb.ZRem(ctx, leases, strings.Repeat("a", 16), strings.Repeat("b", 16)).Err())
			require.NoError(t, grant.Release(ctx))
		})
	}
}

// Processes count, that of the holder included, and not their calls.
func TestSemaphore_StateCountsTheProcessesThatWait(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		holder, rdb, name := newSharedClient(t)
		others := []*semaphore.Client{newClient(t, rdb), newClient(t, rdb)}
		s := k.newSemaphore(holder, name, 1, semaphore.WithLease(safeLease))
		waiting := func() int64 {
			state, err := s.State(t.Context())
			require.NoError(t, err)
			return state.Waiting
		}
		grant := mustAcquire(t, s, 1)
		require.Zero(t, waiting())
		for i, c := range []*semaphore.Client{others[0], holder, others[1]} {
			for range 3 {
				k.newSemaphore(c, name, 0).AcquireFunc(t.Context(), 1, func(*semaphore.Grant, error) {})
			}
			poll(t, func() bool { return waiting() == int64(i+1) })
		}
		for i, c := range others {
			require.NoError(t, c.Close(t.Context()))
			poll(t, func() bool { return waiting() == int64(2-i) })
		}
		require.NoError(t, grant.Release(t.Context()))
		poll(t, func() bool { return holder.Stats().Acquired == 2 })
		poll(t, func() bool { return waiting() == 1 }) // its other calls
	})
}

// A count of 0 would say that nobody waits.
func TestSemaphore_StateDoesNotKnowWhoWaits(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		server, name := redistest.Start(t), "permits"
		user := server.User(t, "app", "~permits", "~{permits}:call:*", "~"+k.key(name, "[^w]*"), "&*", "+@all")
		all, few := newClient(t, server.Client(t)), newClient(t, server.Client(t, user))
		mustAcquire(t, k.newSemaphore(all, name, 1, semaphore.WithLease(safeLease)), 1)
		k.newSemaphore(all, name, 0).AcquireFunc(t.Context(), 1, func(*semaphore.Grant, error) {})
		k.awaitLine(t, server.Client(t), name, 1)
		for c, want := range map[*semaphore.Client]int64{all: 1, few: -1} {
			state, err := k.newSemaphore(c, name, 0).State(t.Context())
			require.NoError(t, err)
			require.Equal(t, want, state.Waiting)
			require.EqualValues(t, 1, state.Held)
		}

		ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": server.Addr()}})
		t.Cleanup(func() { require.NoError(t, ring.Close()) })
		state, err := k.newSemaphore(newClient(t, ring), "another", 0).State(t.Context())
		require.NoError(t, err)
		require.Equal(t, k.name == fairKind.name, state.Waiting == 0, "only a FairSemaphore has a line there")
	})
}

func TestSemaphore_StateShowsAtMostAThousandPermits(t *testing.T) {
	t.Parallel()
	c, rdb, name := newSharedClient(t)
	many := c.Semaphore(name+":many", 0)
	for i := range 1200 {
		score := float64(time.Now().Add(time.Hour).UnixMilli() + int64(i))
		require.NoError(t, rdb.Do(t.Context(), "ZADD", scripts.SuffixName(many.Name(), "timeout"), score, fmt.Sprintf("%016d", i)).Err())
	}
	state, err := many.State(t.Context())
	require.NoError(t, err)
	require.False(t, state.IsSet)
	require.Zero(t, state.Free)
	require.EqualValues(t, 1200, state.Held)
	require.Len(t, state.Permits, 1000)
	require.Less(t, state.Permits[0].Lease, state.Permits[999].Lease)
}

func TestSemaphore_StateRefuses(t *testing.T) {
	t.Parallel()
	c, rdb, name := newSharedClient(t)
	_, err := c.Semaphore("{}", 0).State(t.Context())
	require.ErrorIs(t, err, cogwheel.ErrInvalid)
	_, err = c.Semaphore(name, 0).State(nil) //nolint:staticcheck // a nil context is refused
	require.ErrorIs(t, err, cogwheel.ErrInvalid)
	require.NoError(t, rdb.Set(t.Context(), name, "text", 0).Err())
	_, err = c.Semaphore(name, 0).State(t.Context())
	require.ErrorIs(t, err, semaphore.ErrWrongKind)
}
