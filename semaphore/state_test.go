package semaphore_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
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

func TestSemaphore_StateShowsWaitersAndAtMostAThousandPermits(t *testing.T) {
	t.Parallel()
	c, rdb, name := newSharedClient(t)
	s := c.FairSemaphore(name, 0)
	require.NoError(t, s.SetPermits(t.Context(), 1))
	grant, err := s.Acquire(t.Context(), 1)
	require.NoError(t, err)
	for _, process := range []*semaphore.Semaphore{s, newClient(t, rdb).FairSemaphore(name, 0)} {
		for range 3 {
			process.AcquireFunc(t.Context(), 1, func(*semaphore.Grant, error) {})
		}
	}
	poll(t, func() bool {
		state, err := s.State(t.Context())
		require.NoError(t, err)
		return state.Waiting == 2
	})
	require.NoError(t, grant.Release(t.Context()))

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
