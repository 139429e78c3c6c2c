package conventions

import (
	"context"
	"errors"
	"sync/atomic"
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
	state atomic.Pointer[endState] // nil until Close, Done or a context is asked for
}

// endState is what an End has come to. It does not change.
type endState struct {
	reason error        // nil before the end
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
func Ended(reason error) *End {
	var e End
	e.Close(reason)
	return &e
}

// Close makes the end come, unless it has, and reports whether it did.
func (e *End) Close(reason error) (first bool) {
	for {
		before, s := e.load()
		if s.reason != nil {
			return false
		}
		if e.change(before, endState{reason, s.done}) {
			return true
		}
	}
}

// load returns the state. If the end has come, it ends the context too: no caller learns of the one before the other.
func (e *End) load() (at *endState, s endState) {
	if at = e.state.Load(); at != nil {
		s = *at
		s.endContext()
	}
	return at, s
}

// change replaces the state, unless another call has.
func (e *End) change(before *endState, to endState) bool {
	if !e.state.CompareAndSwap(before, &to) {
		return false
	}
	to.endContext()
	return true
}

// endContext ends the context if the end has come. It may be called again.
func (s *endState) endContext() {
	if s.reason != nil && s.done != nil {
		s.done.cancel(s.reason)
	}
}

// Err returns nil before the end, and its reason afterwards.
func (e *End) Err() error {
	_, s := e.load()
	return s.reason
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
	for {
		before, s := e.load()
		if s.done != nil {
			return s.done.ctx
		}
		ctx, cancel := context.WithCancelCause(context.Background())
		if e.change(before, endState{s.reason, &doneContext{ctx, cancel}}) {
			return ctx
		}
	}
}
