package ratelimit_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// asked is a call for one permit that does not wait.
type asked func(context.Context) (ratelimit.Result, error)

// crowded is a limiter of one key or log, or an All, of 2000 permits an hour.
type crowded struct {
	calls    map[string]asked
	waitFunc func(context.Context, int64, func(error)) func()
	limits   int64 // which a settlement asks
}

func crowdedKinds() map[string]func(*testing.T, *ratelimit.Client) crowded {
	limit := ratelimit.PerHour(2000)
	of := map[string]func(*testing.T, *ratelimit.Client) crowded{
		"an All": func(t *testing.T, c *ratelimit.Client) crowded {
			t.Helper()
			name := redistest.Name(t)
			a := c.All(c.Limiter("k", limit).Part(name), c.Limiter("l", limit).Part(name))
			return crowded{map[string]asked{
				"Allow":      a.Allow,
				"TryReserve": func(ctx context.Context) (ratelimit.Result, error) { return a.TryReserve(ctx, 1) },
			}, a.WaitFunc, 2}
		},
		"a log": func(t *testing.T, c *ratelimit.Client) crowded {
			t.Helper()
			l := newStoredLimiter(t, c, limit, ratelimit.Overall)
			return crowded{map[string]asked{
				"Allow":      l.Allow,
				"TryReserve": func(ctx context.Context) (ratelimit.Result, error) { return l.TryReserve(ctx, 1) },
				"AllowUpTo":  func(ctx context.Context) (ratelimit.Result, error) { return l.AllowUpTo(ctx, 1) },
			}, l.WaitFunc, 1}
		},
	}
	for kind, algorithm := range kinds {
		of[kind] = func(t *testing.T, c *ratelimit.Client) crowded {
			t.Helper()
			k, name := c.Limiter("k", limit, ratelimit.WithAlgorithm(algorithm)), redistest.Name(t)
			return crowded{map[string]asked{
				"Allow":      func(ctx context.Context) (ratelimit.Result, error) { return k.Allow(ctx, name) },
				"TryReserve": func(ctx context.Context) (ratelimit.Result, error) { return k.TryReserve(ctx, name, 1) },
				"AllowUpTo":  func(ctx context.Context) (ratelimit.Result, error) { return k.AllowUpTo(ctx, name, 1) },
			}, func(ctx context.Context, n int64, f func(error)) func() { return k.WaitFunc(ctx, name, n, f) }, 1}
		}
	}
	return of
}

// A call that does not wait is denied while others wait for more than there is, and asks Redis a bounded number of
// times: also where settlements void what it knows while each answer travels.
// Guarantees: Q39.
func TestBehindWaiters_NoCallOvertakesThemOrGoesOnAsking(t *testing.T) {
	t.Parallel()
	for kind, of := range crowdedKinds() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			d := &redistest.FaultDialer{}
			l := of(t, newClient(t, redistest.Shared(t).Client(t, func(o *redis.Options) { o.Dialer = d.Dial })))
			reserved := make(chan *ratelimit.Reservation, 400)
			for range cap(reserved) {
				r, err := l.calls["TryReserve"](t.Context())
				require.NoError(t, err)
				reserved <- r.Reservation
			}
			close(reserved)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			l.waitFunc(ctx, 2000, func(error) {})
			d.Delay(0, 20*time.Millisecond)

			var settling sync.WaitGroup
			defer settling.Wait()
			for range 8 {
				settling.Go(func() {
					for r := range reserved {
						_, _ = r.Cancel(ctx)
					}
				})
			}
			redistest.Poll(t, func() bool { return len(reserved) < cap(reserved)-16 })
			for name, call := range l.calls {
				r, err := call(t.Context())
				require.NoError(t, err, name)
				require.False(t, r.Allowed, name)
				require.Positive(t, r.RetryAfter, name)
				require.Positive(t, r.ResetAfter, name)
				require.Zero(t, r.Granted, name)
			}
			require.NotEmpty(t, reserved, "the calls went on as long as others settled")
			cancel()
		})
	}
}

// Permits that come back wake a waiter when they suffice for it. Too few of them cost it no script each, only looks that
// time bounds.
// Guarantees: Q39.
func TestBehindWaiters_AReturnCostsNoScriptForTheWaiter(t *testing.T) {
	t.Parallel()
	const returned = 200
	for kind, of := range crowdedKinds() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c := newClient(t, redistest.Shared(t).Client(t))
			l := of(t, c)
			var reserved [returned + 1]*ratelimit.Reservation
			for i := range reserved {
				r, err := l.calls["TryReserve"](t.Context())
				require.NoError(t, err)
				reserved[i] = r.Reservation
			}
			served := make(chan error, 1)
			l.waitFunc(t.Context(), 2000-1, func(err error) { served <- err })
			before, scripts := time.Now(), c.Stats().Scripts
			for _, r := range reserved[:returned] {
				require.NoError(t, second(r.Cancel(t.Context())))
			}
			looks := c.Stats().Scripts - scripts - returned*l.limits
			require.LessOrEqual(t, looks, 10+int64(time.Since(before)/(10*time.Millisecond)))
			select {
			case err := <-served:
				require.NoError(t, err)
			case <-time.After(patience):
				require.Fail(t, "the waiter was forgotten")
			}
		})
	}
}
