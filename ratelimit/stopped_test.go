package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func stopWheel(t *testing.T, w *wheel.Wheel) {
	t.Helper()
	_, err := w.Stop(within(t, patience))
	require.NoError(t, err)
}

// Without probes nothing would close the breaker again.
// Guarantees: A4.
func TestBreaker_AsksRedisAgainWhenTheWheelIsStopped(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	server, w := redistest.Start(t), newWheel(t)
	c := newClient(t, server.Client(t), ratelimit.WithWheel(w), ratelimit.WithTimeout(50*time.Millisecond),
		ratelimit.WithBreaker(1, time.Hour), ratelimit.WithPolicy(ratelimit.FailOpen()))
	k := c.Limiter("k", ratelimit.PerHour(10))
	server.Pause()
	r, err := k.Allow(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, ratelimit.SourceDegraded, r.Source)
	redistest.Poll(t, func() bool { return c.Stats().Down }) // at the end of the check of the node
	server.Resume()
	stopWheel(t, w)
	redistest.Poll(t, func() bool { return !c.Stats().Down }) // a breaker that is just opening finds that it has no probe
	redistest.Poll(t, func() bool {                           // an answer within the timeout
		r, err := k.Allow(t.Context(), "k")
		return err == nil && r.Source == ratelimit.SourceRedis
	})
}

type anyClient redis.UniversalClient

// unknown is a client whose commands a Client of this package cannot bound.
type unknown struct{ anyClient }

// The timeout of a decision is an entry on the wheel.
// Guarantees: A4.
func TestAllow_KeepsItsTimeoutWithoutAWheel(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	for name, without := range map[string]func(t *testing.T, w *wheel.Wheel, begin func()){
		"stopped before": func(t *testing.T, w *wheel.Wheel, begin func()) { stopWheel(t, w); begin() },
		"stopped while the script is in flight": func(t *testing.T, w *wheel.Wheel, begin func()) {
			begin()
			redistest.Poll(t, func() bool { return w.Len() > 0 })
			stopWheel(t, w)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			w := newWheel(t)
			rdb := server.Client(t, func(o *redis.Options) { o.ReadTimeout = patience })
			c := newClient(t, unknown{rdb}, ratelimit.WithWheel(w), ratelimit.WithTimeout(200*time.Millisecond))
			k := c.Limiter("k", ratelimit.PerHour(10))
			server.Pause()
			ended := make(chan error, 1)
			without(t, w, func() {
				go func() {
					_, err := k.Allow(context.Background(), "k")
					ended <- err
				}()
			})
			select {
			case err := <-ended:
				require.ErrorIs(t, err, ratelimit.ErrUnavailable)
			case <-within(t, patience/3).Done():
				require.Fail(t, "the call takes as long as Redis hangs")
			}
			server.Resume()
			stopWheel(t, w)
		})
	}
}
