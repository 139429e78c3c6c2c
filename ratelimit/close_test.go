package ratelimit_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// What a limiter remembers keeps neither the Client nor an entry of the wheel after Close, which may be the
// default wheel of a process that goes on.
func TestClient_CloseLeavesNothingOnTheWheel(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	hour := ratelimit.PerHour(100)
	stored := func(scope ratelimit.Scope) func(*testing.T, *ratelimit.Client, string) {
		return func(t *testing.T, c *ratelimit.Client, name string) {
			l := c.StoredLimiter(name)
			require.NoError(t, l.SetRate(t.Context(), hour, ratelimit.WithScope(scope)))
			take(t, l, 100, true)
			take(t, l, 1, false)
		}
	}
	limiter := func(opts ...ratelimit.LimiterOption) func(*testing.T, *ratelimit.Client, string) {
		return func(t *testing.T, c *ratelimit.Client, name string) {
			k := c.Limiter(name, hour, opts...)
			for _, n := range []int64{1, 60, 60} {
				_, err := k.AllowN(t.Context(), "key", n)
				require.NoError(t, err)
			}
		}
	}
	for what, use := range map[string]func(*testing.T, *ratelimit.Client, string){
		"a key that is denied":          limiter(),
		"a window that is denied":       limiter(ratelimit.WithAlgorithm(ratelimit.FixedWindow)),
		"a sliding window":              limiter(bySliding),
		"a limiter":                     stored(ratelimit.Overall),
		"a limiter counted by a client": stored(ratelimit.PerClient),
		"a waiter": func(t *testing.T, c *ratelimit.Client, name string) {
			k := c.Limiter(name, ratelimit.PerHour(1))
			require.NoError(t, k.Wait(t.Context(), "key"))
			ended := make(chan error, 1)
			k.WaitFunc(context.Background(), "key", 1, func(err error) { ended <- err })
			t.Cleanup(func() { require.ErrorIs(t, <-ended, ratelimit.ErrClosed) })
		},
		"a reservation": func(t *testing.T, c *ratelimit.Client, name string) {
			_, err := c.Limiter(name, ratelimit.PerMinute(10)).Reserve(t.Context(), "key", 10)
			require.NoError(t, err)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newWheel(t)
			c, err := ratelimit.New(rdb, ratelimit.WithWheel(w), ratelimit.WithTimeout(patience))
			require.NoError(t, err)
			use(t, c, redistest.Name(t))
			require.NoError(t, c.Close(t.Context()))
			require.Zero(t, w.Len())
		})
	}
}
