// Package contexts has what all packages do with the contexts of their callers.
package contexts

import (
	"context"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/joined"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Error returns why a context has ended: its Err, and its cause if that is another error.
func Error(ctx context.Context) error {
	return joined.Also(ctx.Err(), context.Cause(ctx))
}

// EndingWith returns a context that ends with parent, or with base and its cause. It needs no goroutine, and
// is released with either.
func EndingWith(parent, base context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	if base.Err() != nil {
		cancel(context.Cause(base))
		return ctx
	}
	stop := context.AfterFunc(base, func() { cancel(context.Cause(base)) })
	context.AfterFunc(ctx, func() { stop() })
	return ctx
}

// After returns a channel that is closed when d has passed since ctx ended, or earlier if w is stopped or full
// then. It is nil if ctx never ends. The caller calls stop when it does not need the channel any more.
func After(ctx context.Context, w *wheel.Wheel, d time.Duration) (passed <-chan struct{}, stop func()) {
	if ctx.Done() == nil {
		return nil, func() {}
	}
	over := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		if _, err := wheelentry.AfterFunc(w, d, func(error) { close(over) }); err != nil {
			close(over)
		}
	})
	return over, func() { cancel() }
}

// closeGrace is how long a Close may take whose context has ended before.
const closeGrace = time.Second

// ToClose returns ctx. If it has ended, ToClose returns a context of a second in its place: a deferred Close often
// gets the context whose end is the reason to close, and has to release what others wait for all the same.
func ToClose(ctx context.Context, w *wheel.Wheel) (context.Context, context.CancelFunc) {
	if ctx.Err() == nil {
		return ctx, func() {}
	}
	return w.WithTimeout(context.WithoutCancel(ctx), closeGrace)
}
