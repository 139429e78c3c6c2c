package wheelentry

import (
	"context"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// AfterEnd returns a channel that is closed d after the end of ctx, or at its end if w is stopped. The channel is
// nil if ctx cannot end. stop releases it.
func AfterEnd(ctx context.Context, w *wheel.Wheel, d time.Duration) (passed <-chan struct{}, stop func()) {
	if ctx.Done() == nil {
		return nil, func() {}
	}
	over := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		if _, err := AfterFunc(w, d, func(error) { close(over) }); err != nil {
			close(over)
		}
	})
	return over, func() { cancel() }
}
