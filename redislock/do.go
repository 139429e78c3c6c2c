package redislock

import (
	"context"
	"errors"
	"log/slog"
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
				slog.String("name", l.name), slog.Any("error", unlocked))
		}
	}()
	return f(l.Context(ctx))
}
