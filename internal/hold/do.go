package hold

import (
	"context"
	"errors"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
)

// Do calls f with the context of a hold, which the handle h makes, and releases the hold when f returns, panics or ends
// its goroutine. It returns the error of f, joined with Lost or Closed if the hold was lost or the Client closed
// meanwhile. A release that fails is repeated in the background; failed gets its error.
func (c *Client) Do(
	ctx context.Context, h conventions.Hold, f, release func(context.Context) error, failed func(error),
) (err error) {
	defer func() {
		switch released := release(ctx); {
		case released == nil:
		case errors.Is(released, c.Lost):
			if !errors.Is(err, c.Lost) { // f may have returned the cause of its context
				err = conventions.Join(err, released)
			}
		case errors.Is(released, c.Closed):
			err = conventions.Also(err, c.Closed)
		case errors.Is(released, c.NotHeld): // f has released it
		default:
			failed(released)
		}
	}()
	return f(h.Context(ctx))
}
