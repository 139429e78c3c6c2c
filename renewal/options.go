package renewal

import "log/slog"

// Option configures New. Of an option that is given twice, the last one counts. A nil option, or one with a
// nil argument, is refused, also if a later one replaces it.
type Option interface{ apply(*config) error }

type config struct {
	logger *slog.Logger
	hooks  Hooks
}

type option func(*config) error

func (o option) apply(c *config) error { return o(c) }

// WithLogger sets where losses and failing backends are reported. The default is slog.Default(), as it is
// when the Renewer is made.
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) error {
		if l == nil {
			return argument.Nil("WithLogger")
		}
		c.logger = l
		return nil
	})
}

// WithHooks sets functions that are called for what happens to leases. The default is none.
func WithHooks(h Hooks) Option {
	return option(func(c *config) error {
		c.hooks = h
		return nil
	})
}

func newConfig(opts []Option) (config, error) {
	c := config{logger: slog.Default()}
	for i, o := range opts {
		if o == nil {
			return c, argument.Error("option", i, "is nil")
		}
		if err := o.apply(&c); err != nil {
			return c, err
		}
	}
	return c, nil
}
