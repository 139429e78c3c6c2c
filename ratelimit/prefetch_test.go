package ratelimit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/ratelimit"
)

func TestPrefetch_ChargesOnlyWithAGrant(t *testing.T) {
	t.Parallel()
	for what, algorithm := range kinds {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, _, _, name := shared(t)
			ctx := t.Context()
			k := c.Keyed("k", ratelimit.PerHour(20), ratelimit.WithAlgorithm(algorithm), ratelimit.WithPrefetch(5, time.Minute))
			plain := c.Keyed("k", ratelimit.PerHour(20), ratelimit.WithAlgorithm(algorithm)) // the same key, without what is charged in advance
			left := func() int64 {
				r, err := plain.Peek(ctx, name)
				require.NoError(t, err)
				return r.Remaining
			}
			for range 5 {
				_, err := k.Peek(ctx, name)
				require.NoError(t, err)
				_, err = k.AllowUpTo(ctx, name, 0)
				require.NoError(t, err)
			}
			require.Equal(t, int64(20), left(), "a look charges nothing")

			r, err := k.AllowN(ctx, name, 4)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.Equal(t, int64(11), left(), "four, and five in advance")
			r, err = plain.AllowN(ctx, name, 3)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			r, err = k.AllowN(ctx, name, 10)
			require.NoError(t, err)
			require.False(t, r.Allowed)
			require.Equal(t, int64(8), left(), "a denied request takes nothing")
			r, err = k.AllowN(ctx, name, 6)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.Equal(t, int64(2), left(), "there are not five more to charge in advance")
		})
	}
}

// What is charged in advance is used only as long as the limit would not have given it back.
func TestPrefetch_IsNotGrantedOnTopOfARefilledBurst(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	limit := ratelimit.PerSecond(100).WithBurst(20)
	k, w := c.Keyed("k", limit, ratelimit.WithPrefetch(5, 100*time.Millisecond)), newWheel(t)
	began := time.Now()
	r, err := k.Allow(t.Context(), name)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.NoError(t, w.Sleep(t.Context(), 90*time.Millisecond)) // the burst is back
	grants := []grant{{began.UnixNano(), time.Now().UnixNano(), 1}}
	for range 60 {
		call := time.Now()
		r, err := k.Allow(t.Context(), name)
		require.NoError(t, err)
		if r.Allowed {
			grants = append(grants, grant{call.UnixNano(), time.Now().UnixNano(), 1})
		}
	}
	require.Greater(t, len(grants), 15)
	require.LessOrEqual(t, excess(grants, bucket(limit)), 0.0)
}
