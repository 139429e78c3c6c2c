package renewal

import "log/slog"

const (
	defaultBatchSize = 100
	defaultMaxCalls  = 4
)

// Option configures New.
type Option interface{ apply(*config) error }

type config struct {
	logger    *slog.Logger
	batchSize int
	maxCalls  int
	given     map[string]bool
}

type option struct {
	name string
	set  func(*config) error
}

func (o option) apply(c *config) error {
	if c.given[o.name] {
		return &InvalidError{Field: "option", Value: o.name, Reason: "given more than once"}
	}
	c.given[o.name] = true
	return o.set(c)
}

// WithLogger sets where losses and failing backends are reported. The default is to report nowhere.
func WithLogger(l *slog.Logger) Option {
	return option{"WithLogger", func(c *config) error {
		if l == nil {
			return &InvalidError{Field: "WithLogger", Value: "nil", Reason: "must not be nil"}
		}
		c.logger = l
		return nil
	}}
}

// WithBatchSize sets how many leases one call to a backend carries at most: 1 to 10000, default 100.
func WithBatchSize(n int) Option {
	return option{"WithBatchSize", func(c *config) error {
		if n < 1 || n > 10000 {
			return &InvalidError{Field: "WithBatchSize", Value: n, Reason: "must be 1 to 10000"}
		}
		c.batchSize = n
		return nil
	}}
}

// WithMaxCalls sets how many calls to one destination may be in flight at a time: 1 to 64, default 4.
func WithMaxCalls(n int) Option {
	return option{"WithMaxCalls", func(c *config) error {
		if n < 1 || n > 64 {
			return &InvalidError{Field: "WithMaxCalls", Value: n, Reason: "must be 1 to 64"}
		}
		c.maxCalls = n
		return nil
	}}
}

func newConfig(opts []Option) (config, error) {
	c := config{
		logger:    slog.New(slog.DiscardHandler),
		batchSize: defaultBatchSize,
		maxCalls:  defaultMaxCalls,
		given:     make(map[string]bool),
	}
	for i, o := range opts {
		if o == nil {
			return c, &InvalidError{Field: "option", Value: i, Reason: "is nil"}
		}
		if err := o.apply(&c); err != nil {
			return c, err
		}
	}
	return c, nil
}
