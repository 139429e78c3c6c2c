package redislock

import (
	"context"
	"errors"
	"log/slog"

	"github.com/cogwheel-go/cogwheel/internal/calls"
)

// do is the Do of every kind of lock.
func do(ctx context.Context, logger *slog.Logger, lock func(context.Context) (*Lock, error), f func(context.Context) error) (err error) {
	if f == nil {
		return &InvalidError{Field: "function", Value: "nil", Reason: "must not be nil"}
	}
	l, err := lock(ctx)
	if err != nil {
		return err
	}
	defer func() {
		switch unlocked := l.Unlock(ctx); {
		case unlocked == nil:
		case errors.Is(unlocked, ErrLost), errors.Is(unlocked, ErrClosed):
			err = errors.Join(err, unlocked)
		default:
			logger.LogAttrs(context.WithoutCancel(ctx), slog.LevelWarn, "release failed, retrying in the background",
				slog.String("name", l.name()), slog.Any("error", unlocked))
		}
	}()
	return f(l.Context(ctx))
}

// admit checks what every call begins with, and enters the gate.
func admit(ctx context.Context, g *calls.Gate, name string, refused error) error {
	switch {
	case refused != nil:
		return refused
	case ctx == nil:
		return &InvalidError{Field: "context", Value: "nil", Reason: "must not be nil"}
	case ctx.Err() != nil:
		return operationError("lock", name, calls.Ended(ctx))
	case !g.Enter():
		return ErrClosed
	}
	return nil
}
