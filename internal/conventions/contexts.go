package conventions

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Cause returns why a context has ended: its Err, and its cause if that is another error.
func Cause(ctx context.Context) error {
	return Also(ctx.Err(), context.Cause(ctx))
}

// Now returns the time with which the deadline of a context is compared. It is that of package time, also if the wheel
// of the program has another clock.
func Now() time.Time { return time.Now() }

// Caused reports whether the caller ended the call that returned err: by ctx, or by a cancel function, whose calls
// return context.Canceled.
func Caused(ctx context.Context, err error) bool {
	return errors.Is(err, context.Canceled) || ctx.Err() != nil && errors.Is(err, ctx.Err())
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

// End is the end of a hold: it comes once, with its reason, and with it the contexts that Context made end. The zero
// value has not come. It is safe for concurrent use. By itself it is a hold that only Close ends.
type End struct {
	mu     sync.Mutex
	reason error
	done   *doneContext // nil until Done or Context is called: most holds never need it
}

// doneContext is a context that ends with a hold.
type doneContext struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// Hold has the methods that a Lock and a Grant forward to what they stand for.
type Hold interface {
	Done() <-chan struct{}
	Err() error
	Valid() bool
	Deadline() time.Time
	Context(parent context.Context) context.Context
}

// Ended returns an End that has come.
func Ended(reason error) *End { return &End{reason: reason} }

// Close makes the end come, unless it has, and reports whether it did.
func (e *End) Close(reason error) (first bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reason != nil {
		return false
	}
	e.reason = reason
	if e.done != nil {
		e.done.cancel(reason)
	}
	return true
}

// Err returns nil before the end, and its reason afterwards.
func (e *End) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.reason
}

// Valid reports whether the end has not come.
func (e *End) Valid() bool { return e.Err() == nil }

// Deadline returns the zero time: no instant is known at which the end comes.
func (e *End) Deadline() time.Time { return time.Time{} }

// Done returns a channel that is closed at the end.
func (e *End) Done() <-chan struct{} { return e.Base().Done() }

// Context returns a context that ends with parent, or at the end with its reason as the cause. It needs no goroutine,
// and is released with either.
func (e *End) Context(parent context.Context) context.Context { return EndingWith(parent, e.Base()) }

// Base returns a context that ends at the end, with its reason as the cause.
func (e *End) Base() context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.done == nil {
		ctx, cancel := context.WithCancelCause(context.Background())
		e.done = &doneContext{ctx, cancel}
		if e.reason != nil {
			cancel(e.reason)
		}
	}
	return e.done.ctx
}
