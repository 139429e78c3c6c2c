package renewal

import (
	"log/slog"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
)

// Option configures New. If an option is given twice, the last one counts. A nil option, or one with a nil
// argument, is refused, even if a later one replaces it.
type Option interface{ apply(*config) error }

type config struct {
	logger *slog.Logger
	hooks  Hooks
}

type option func(*config) error

func (o option) apply(c *config) error { return o(c) }

// WithLogger sets the logger that reports losses and failing backends. The default is slog.Default() at the
// time of New.
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) error { return conventions.Set(argument, "WithLogger", &c.logger, l) })
}

// WithHooks sets functions that the Renewer calls when something happens to a lease. By default it calls none. To use
// two Hooks, pass a third one whose functions call both.
func WithHooks(h Hooks) Option {
	return option(func(c *config) error {
		c.hooks = h
		return nil
	})
}

func newConfig(opts []Option) (config, error) {
	c := config{logger: slog.Default()}
	err := conventions.Apply(argument, &c, opts, Option.apply)
	return c, err
}
