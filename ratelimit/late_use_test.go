package ratelimit_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// Guarantees: Q15.
func TestClose_EndsWhatIsMadeLater(t *testing.T) {
	t.Parallel()
	c, _, n, name := shared(t)
	own := c.StoredLimiter(name + ":own")
	require.NoError(t, own.SetRate(t.Context(), perSeconds(10, 3600), ratelimit.WithScope(ratelimit.PerClient)))
	_, err := own.Allow(t.Context())
	require.NoError(t, err)
	spent := c.Limiter("spent", perSeconds(1, 3600))
	for range 2 {
		_, err = spent.Allow(t.Context(), name)
		require.NoError(t, err)
	}
	reserved, err := spent.Reserve(t.Context(), name+":reserved", 1)
	require.NoError(t, err)
	require.NoError(t, c.Close(t.Context()))
	later := c.Limiter("later", perSeconds(10, 1))
	trips := n.trips(func() {
		require.ErrorIs(t, later.Wait(t.Context(), name), ratelimit.ErrClosed)
		_, err := own.Allow(t.Context())
		require.ErrorIs(t, err, ratelimit.ErrClosed)
		_, err = own.AllowUpTo(t.Context(), 3)
		require.ErrorIs(t, err, ratelimit.ErrClosed)
		_, err = spent.Allow(t.Context(), name)
		require.ErrorIs(t, err, ratelimit.ErrClosed, "denied from memory")
		require.ErrorIs(t, spent.Reset(t.Context(), name), ratelimit.ErrClosed)
		_, err = reserved.Cancel(t.Context())
		require.ErrorIs(t, err, ratelimit.ErrClosed)
		require.ErrorIs(t, own.SetRate(t.Context(), perSeconds(1, 1)), ratelimit.ErrClosed)
		_, err = own.Config(t.Context())
		require.ErrorIs(t, err, ratelimit.ErrClosed)
		_, err = own.Delete(t.Context())
		require.ErrorIs(t, err, ratelimit.ErrClosed)
	})
	require.Zero(t, trips)
}

func TestWaitFunc_CancelDoesNotRunTheFunction(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	k := c.Limiter("cancel", perSeconds(1, 3600))
	_, err := k.Allow(t.Context(), name)
	require.NoError(t, err)
	var mu sync.Mutex // which the function needs and the canceller holds
	ended := make(chan error, 1)
	cancel := k.WaitFunc(t.Context(), name, 1, func(err error) {
		mu.Lock()
		defer mu.Unlock()
		ended <- err
	})
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		mu.Lock()
		defer mu.Unlock()
		cancel()
	}()
	select {
	case <-returned:
	case <-time.After(patience):
		require.FailNow(t, "cancel waits for the function that it calls")
	}
	require.ErrorIs(t, <-ended, context.Canceled)
}

// A reservation is entered into the count that the limit was looked up for, whatever happens to that in
// between.
// Guarantees: Q1.
func TestPerClient_ReserveWhileTheLimitIsSet(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	l := c.StoredLimiter(name)
	set := func() {
		require.NoError(t, l.SetRate(t.Context(), perSeconds(1000, 1), ratelimit.WithScope(ratelimit.PerClient)))
	}
	set()
	ctx := within(t, patience)
	over, stop := context.WithTimeout(ctx, 2*time.Second)
	defer stop()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for over.Err() == nil {
				r, err := l.Reserve(ctx, 1)
				if err == nil {
					_, err = r.Cancel(ctx)
				}
				if err != nil && ctx.Err() == nil {
					require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
				}
			}
		})
	}
	for range 4 {
		all.Go(func() {
			for over.Err() == nil {
				set()
			}
		})
	}
	all.Wait()
}
