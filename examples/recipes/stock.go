package recipes

import (
	"context"
	"errors"

	"github.com/cogwheel-go/cogwheel/semaphore"
)

// Buy sells one item of a stock, as in a flash sale, from any process. A permit of stock is an item. It has no holder
// and no lease, so the buyer keeps it. If the stock is sold out, Buy returns semaphore.ErrNoPermits after one round trip.
//
// Set the stock once, with TrySetPermits, and not at the start of each process: if Redis loses its data, Buy returns
// semaphore.ErrNotSet, and whoever counts the payments sets what is left.
//
// pay must return an error only if the buyer has not paid: then the item is back in the stock. The context of pay does
// not end with ctx, as a payment that is broken off may have been made.
//
// If the process crashes, or pay panics, the item stays taken, paid or not: never more is sold than there is.
// stock.AddPermits puts an item back that nobody has paid for.
//
// At SIGTERM sell nothing more, and let the calls that run return; http.Server.Shutdown does both. Then close the client
// of the stock, which sends what it still has to put back.
func Buy(ctx context.Context, stock *semaphore.CountingSemaphore, pay func(context.Context) error) error {
	if err := stock.TryAcquire(ctx, 1); err != nil {
		return err
	}
	if err := pay(context.WithoutCancel(ctx)); err != nil {
		_, failed := stock.ReleaseIfExists(ctx, 1) // sent even if ctx has ended; Release would set a lost stock to 1
		return errors.Join(err, failed)
	}
	return nil
}
