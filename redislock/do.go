package redislock

import (
	"context"
	"errors"
	"log/slog"

	"github.com/cogwheel-go/cogwheel/internal/joined"

	"github.com/cogwheel-go/cogwheel/internal/contexts"
	"github.com/cogwheel-go/cogwheel/internal/gate"
)

// do is the Do of all kinds of locks.
func do(
	ctx context.Context, logger *slog.Logger, lock func(context.Context) (*Lock, error), f func(context.Context) error,
) (err error) {
	if f == nil {
		return argument.Nil("function")
	}
	l, err := lock(ctx)
	if err != nil {
		return err
	}
	defer func() {
		switch unlocked := l.Unlock(ctx); {
		case unlocked == nil:
		case errors.Is(unlocked, ErrLost):
			if !errors.Is(err, ErrLost) { // f may have returned the cause of its context
				err = joined.Errors(err, unlocked)
			}
		case errors.Is(unlocked, ErrClosed):
			err = joined.Also(err, ErrClosed)
		case errors.Is(unlocked, ErrNotHeld): // f has unlocked it
		default:
			logger.LogAttrs(context.WithoutCancel(ctx), slog.LevelWarn,
				"redislock: a release failed and is retried in the background",
				slog.String("name", l.name()), slog.Any("error", unlocked))
		}
	}()
	return f(l.Context(ctx))
}

// admit checks the preconditions of every call, and enters the gate.
func admit(ctx context.Context, g *gate.Gate, name string, refused error) error {
	switch {
	case refused != nil:
		return refused
	case ctx == nil:
		return argument.Nil("context")
	case ctx.Err() != nil:
		return operationError("lock", name, contexts.Error(ctx))
	case !g.Enter():
		return operationError("lock", name, ErrClosed)
	}
	return nil
}
