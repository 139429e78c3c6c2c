package semaphore

import (
	"context"
	"log/slog"

	"github.com/cogwheel-go/cogwheel/internal/hold"
)

// Do calls f while it holds n permits, 0 to MaxGrant; for 0 it calls f at once. The context of f ends with ctx, or
// when the permits are lost: then its cause matches ErrLost, and f should return. FromContext returns the Grant, for
// Valid and Token. The permits are released when f returns, panics or ends its goroutine, also if ctx has ended. A
// panic goes on to the caller.
//
// Do blocks as Acquire does, and then until f has returned. It returns the error of Acquire, a *cogwheel.InvalidError
// if f is nil, or the error of f, joined with ErrLost if the permits were lost, or with ErrClosed if the Client was
// closed, before f returned. Acquire may return these two as well: to know whether f was called, let f set a variable.
// A release that fails is logged and retried in the background; it is no error of Do.
func (s *Semaphore) Do(ctx context.Context, n int64, f func(context.Context) error) (err error) {
	if f == nil {
		return argument.Nil("function")
	}
	g, err := s.Acquire(ctx, n)
	if err != nil {
		return err
	}
	return s.client.holding.Do(ctx, g, f, g.Release, func(err error) {
		s.client.logger.LogAttrs(context.WithoutCancel(ctx), slog.LevelWarn,
			"semaphore: a release failed and is retried in the background",
			slog.String("name", s.name), slog.Any("error", err))
	})
}

// FromContext returns the Grant of this Semaphore whose Do or Context made ctx or an ancestor of ctx; the innermost if
// there are several. So a function deep in the call stack can get the fencing token of the grant. Only the name and the
// kind, Semaphore or FairSemaphore, decide: a Grant of other options or another Client counts, even if that Client is
// for another Redis.
//
// FromContext returns nil if ctx has no such Grant, as outside of Do. A nil Grant is not held, and its Token is 0,
// which is none. The Grant may be lost or released by now; see Grant.Valid. FromContext does not block, and does not
// talk to Redis.
func (s *Semaphore) FromContext(ctx context.Context) *Grant {
	return hold.From[Grant](ctx, contextName(s.name, s.fair))
}

// contextName returns the name under which a context has a Grant.
func contextName(name string, fair bool) hold.Name {
	return hold.Name{Sort: string(kindOf(fair)), Name: name}
}
