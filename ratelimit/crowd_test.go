package ratelimit_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// A script of a hot key hangs. A few callers that come meanwhile join the next one; a crowd gets one of its
// own.
func TestLimiter_ACrowdDoesNotWaitOutAScript(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	const crowd, burst = 28, 60
	for what, algorithm := range kinds {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			const patience = 3 * time.Second
			d := &redistest.FaultDialer{}
			rdb := redistest.Shared(t).Client(t, func(o *redis.Options) { o.Dialer, o.ReadTimeout = d.Dial, patience })
			c := newClient(t, rdb)
			k, key := c.Limiter("crowd", ratelimit.PerHour(burst).WithBurst(burst), ratelimit.WithAlgorithm(algorithm)), redistest.Name(t)
			_, err := k.Peek(t.Context(), key) // the server knows the script from here on
			require.NoError(t, err)
			lost := d.LoseReply("evalsha", 1, redistest.Swallow)
			began := time.Now()
			hung := make(chan error, 1)
			go func() {
				_, err := k.Allow(t.Context(), key)
				hung <- err
			}()
			<-lost
			var granted atomic.Int64
			each(crowd, func(int) {
				r, err := k.Allow(t.Context(), key)
				if err != nil {
					t.Error(err)
				} else if r.Allowed {
					granted.Add(1)
				}
			})
			require.EqualValues(t, crowd, granted.Load())
			require.Less(t, time.Since(began), patience, "before the first has given up")
			require.NoError(t, <-hung, "it was sent again")
			r, err := k.Peek(t.Context(), key)
			require.NoError(t, err)
			require.EqualValues(t, burst-crowd-2, r.Remaining, "it was charged twice, because the first reply was lost")
		})
	}
}
