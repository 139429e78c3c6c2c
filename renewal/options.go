package renewal

import "log/slog"

const (
	defaultBatchSize = 100
	defaultMaxCalls  = 4
)

// Option configures New. Of an option that is given twice, the last one counts.
type Option interface{ apply(*config) error }

type config struct {
	logger    *slog.Logger
	hooks     Hooks
	batchSize int
	maxCalls  int
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

// WithBatchSize sets how many leases one call to a backend carries at most: 1 to 10000, default 100.
func WithBatchSize(n int) Option {
	return option(func(c *config) error {
		if n < 1 || n > 10000 {
			return argument.Error("WithBatchSize", n, "must be 1 to 10000")
		}
		c.batchSize = n
		return nil
	})
}

// WithMaxCalls sets how many calls to one destination may be in flight at a time: 1 to 64, default 4.
func WithMaxCalls(n int) Option {
	return option(func(c *config) error {
		if n < 1 || n > 64 {
			return argument.Error("WithMaxCalls", n, "must be 1 to 64")
		}
		c.maxCalls = n
		return nil
	})
}

func newConfig(opts []Option) (config, error) {
	c := config{
		logger:    slog.Default(),
		batchSize: defaultBatchSize,
		maxCalls:  defaultMaxCalls,
	}
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
