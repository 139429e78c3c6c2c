package redislock

import (
	"context"
	"log/slog"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/gate"
)

// do is the Do of all kinds of locks.
func do(
	ctx context.Context, c *Client, lock func(context.Context) (*Lock, error), f func(context.Context) error,
) error {
	if f == nil {
		return argument.Nil("function")
	}
	l, err := lock(ctx)
	if err != nil {
		return err
	}
	return c.holding.Do(ctx, l, f, l.Unlock, func(err error) {
		c.logger.LogAttrs(context.WithoutCancel(ctx), slog.LevelWarn,
			"redislock: a release failed and is retried in the background",
			slog.String("name", l.Name()), slog.Any("error", err))
	})
}

// admit checks the preconditions of every call, and enters the gate.
func admit(ctx context.Context, g *gate.Gate, name string, refused error) error {
	switch {
	case refused != nil:
		return refused
	case ctx == nil:
		return argument.Nil("context")
	case ctx.Err() != nil:
		return operationError("lock", name, conventions.Cause(ctx))
	case !g.Enter():
		return operationError("lock", name, ErrClosed)
	}
	return nil
}
