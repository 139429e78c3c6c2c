package recipes_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/cogwheeltest"
	"github.com/cogwheel-go/cogwheel/examples/recipes"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// newStock returns a stock of three items.
func newStock(t *testing.T, server *cogwheeltest.Server) *semaphore.CountingSemaphore {
	t.Helper()
	stock := server.Semaphores().CountingSemaphore("sale:7")
	set, err := stock.TrySetPermits(t.Context(), 3)
	require.True(t, set && err == nil)
	return stock
}

func requireLeft(t *testing.T, stock *semaphore.CountingSemaphore, want int64) {
	t.Helper()
	left, err := stock.Available(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, left)
}

func TestBuy_SellsNoMoreThanTheStock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stock := newStock(t, cogwheeltest.Start(t))
		declined := errors.New("declined")
		require.ErrorIs(t, recipes.Buy(t.Context(), stock, func(context.Context) error { return declined }), declined)
		requireLeft(t, stock, 3)
		var sold atomic.Int64
		results := make(chan error)
		for range 20 {
			go func() {
				results <- recipes.Buy(t.Context(), stock, func(context.Context) error { sold.Add(1); return nil })
			}()
		}
		for range 20 {
			if err := <-results; err != nil {
				require.ErrorIs(t, err, semaphore.ErrNoPermits)
			}
		}
		require.EqualValues(t, 3, sold.Load())
		requireLeft(t, stock, 0)
	})
}

// The buyer closes the browser, or the process stops, during the payment.
func TestBuy_EndsAPaymentThatHasBegun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stock := newStock(t, cogwheeltest.Start(t))
		ctx, sigterm := context.WithCancel(t.Context())
		require.NoError(t, recipes.Buy(ctx, stock, func(ctx context.Context) error { sigterm(); return ctx.Err() }))
		requireLeft(t, stock, 2)
		require.ErrorIs(t, recipes.Buy(ctx, stock, nil), context.Canceled)
		requireLeft(t, stock, 2)

		ctx, sigterm = context.WithCancel(t.Context())
		declined := errors.New("declined")
		require.ErrorIs(t, recipes.Buy(ctx, stock, func(context.Context) error { sigterm(); return declined }), declined)
		requireLeft(t, stock, 2)
	})
}

func TestBuy_ACrashDuringAPaymentKeepsTheItem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stock := newStock(t, cogwheeltest.Start(t))
		require.Panics(t, func() { _ = recipes.Buy(t.Context(), stock, func(context.Context) error { panic("crash") }) })
		requireLeft(t, stock, 2)
	})
}

func TestBuy_DoesNotMakeALostStockAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := cogwheeltest.Start(t)
		stock, declined := newStock(t, server), errors.New("declined")
		require.ErrorIs(t, recipes.Buy(t.Context(), stock, func(context.Context) error { server.Flush(); return declined }), declined)
		paid := func(context.Context) error { return nil }
		require.ErrorIs(t, recipes.Buy(t.Context(), stock, paid), semaphore.ErrNotSet)
	})
}
