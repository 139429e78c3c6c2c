package cogwheeltest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/cogwheeltest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func TestBubble(t *testing.T) {
	t.Parallel()
	for range 3 {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			srv := cogwheeltest.Start(t)
			locks := srv.Locks()
			ctx := t.Context()
			l, err := locks.Mutex("a").Lock(ctx)
			require.NoError(t, err)
			srv.Advance(10 * time.Minute)
			require.True(t, l.Valid())
			srv.ExpireLock("a")
			srv.Advance(10 * time.Second)
			require.ErrorIs(t, l.Err(), redislock.ErrLost)
			srv.Steal("a", time.Minute)
			l, err = locks.Mutex("a").Lock(ctx)
			require.NoError(t, err)
			t.Log(time.Since(began))
			srv.DropReplies(1, "a")
			require.NoError(t, l.Unlock(ctx))
			require.Zero(t, srv.PendingFaults())
			limits := srv.Limits()
			k := limits.Keyed("api", ratelimit.PerSecond(10))
			srv.Exhaust(k, "u")
			r, err := k.Allow(ctx, "u")
			require.NoError(t, err)
			require.False(t, r.Allowed)
			srv.Advance(time.Second)
			r, err = k.Allow(ctx, "u")
			require.NoError(t, err)
			require.True(t, r.Allowed)
		})
	}
}
