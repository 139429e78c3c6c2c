package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// A caller whose context ends while all connections are in use takes no others along.
// Guarantees: Q14.
func TestLimiter_ACancelledCallerFailsNoStrangers(t *testing.T) {
	t.Parallel()
	for what, algorithm := range kinds {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Shared(t).Client(t, func(o *redis.Options) { o.PoolSize, o.PipelinePoolSize = 1, -1 })
			c := newClient(t, rdb)
			k, name := c.Limiter("k", ratelimit.PerHour(1000), ratelimit.WithAlgorithm(algorithm)), redistest.Name(t)
			_, err := k.Peek(t.Context(), name)
			require.NoError(t, err)

			// Another has the only connection.
			blocked := make(chan error, 1)
			go func() { blocked <- rdb.BLPop(t.Context(), time.Minute, name+":list").Err() }()
			redistest.Poll(t, func() bool { return rdb.PoolStats().IdleConns == 0 })

			const callers = 60 // enough for a script of their own
			ctx, cancel := context.WithCancel(t.Context())
			gone := make(chan error, callers)
			strangers := make(chan error, callers)
			for i := range callers {
				go func() {
					if i%2 == 0 {
						_, err := k.Allow(ctx, name)
						gone <- err
					} else {
						_, err := k.Allow(context.Background(), name)
						strangers <- err
					}
				}()
			}
			require.NoError(t, newWheel(t).Sleep(t.Context(), 100*time.Millisecond)) // by then all are in line for it
			cancel()
			require.NoError(t, newWheel(t).Sleep(t.Context(), 100*time.Millisecond))
			require.NoError(t, redistest.Shared(t).Client(t).LPush(t.Context(), name+":list", 1).Err())
			require.NoError(t, <-blocked)
			for range callers / 2 {
				require.NoError(t, <-strangers)
				if err := <-gone; err != nil {
					require.ErrorIs(t, err, context.Canceled)
				}
			}
		})
	}
}
