package redislock

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// leadPause is the pause before Lead tries again, in which another process can get the lock.
const leadPause = time.Second

// Lead calls f in one process at a time, as for the leader of a service, and again a second after each return of f,
// whatever it returned, until ctx ends. f runs while Lead holds the lock. The context of f ends with ctx, or when the
// lock is lost: then its cause matches ErrLost, and f must return, because another process may lead. FromContext
// returns the Lock, as in Do.
//
// An error of f is logged, and so is that of a lock that cannot be taken, even if Redis refuses it for good; then too
// Lead tries again after a second.
//
// A leader holds its lock for long, and others wait for it: the alerts of docs/observability.md exempt Clients whose
// collectors have names that begin with "leader".
//
// Lead never returns nil. It returns when ctx has ended, at most a second after the Client was closed, or when the
// wheel is stopped, but never before f has returned. The error matches ctx.Err(), ErrClosed or the error of
// the wheel. If Close ends f, the error is that of f joined with ErrClosed. If the name, an option, ctx or f is
// invalid, or the Mutex is the readers' side of an RWMutex, Lead returns a *cogwheel.InvalidError at once. A panic of
// f goes on to the caller.
func (m *Mutex) Lead(ctx context.Context, f func(context.Context) error) error {
	switch {
	case f == nil:
		return argument.Nil("function")
	case m.Err() == nil && m.kind == reading:
		return argument.Error("lock", scripts.Quote(m.name), "its readers do not exclude each other")
	}
	c := m.client()
	for {
		led := false
		err := m.Do(ctx, func(ctx context.Context) error {
			led = true
			return f(ctx)
		})
		if !led && isFinal(err) || c.gate.Closed() && errors.Is(err, ErrClosed) {
			return err
		}
		if err != nil && !errors.Is(err, ctx.Err()) {
			c.logger.LogAttrs(context.WithoutCancel(ctx), slog.LevelWarn, "redislock: not leading",
				slog.String("name", m.name), slog.Any("error", err))
		}
		if err := wheelentry.Sleep(ctx, c.wheel, leadPause); err != nil {
			return operationError("lead", m.name, err)
		}
	}
}

// isFinal reports whether all later calls of Mutex.Do would return the same error.
func isFinal(err error) bool {
	return errors.Is(err, cogwheel.ErrInvalid) || errors.Is(err, ErrClosed) || errors.Is(err, wheel.ErrStopped)
}
