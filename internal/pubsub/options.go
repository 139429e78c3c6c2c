package pubsub

import "time"

const (
	defaultLinger = 5 * time.Second
	defaultPing   = 2 * time.Second

	connectTimeout = 5 * time.Second
	minBackoff     = 10 * time.Millisecond
	maxBackoff     = time.Second
)

// Option changes a default of New.
type Option interface{ apply(*config) }

type config struct {
	linger time.Duration
	ping   time.Duration
}

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

// WithLinger sets the linger: a channel stays subscribed for d to 2d after its last Subscription was closed. The
// default is 5 s. With 0 the channel is unsubscribed at once.
func WithLinger(d time.Duration) Option {
	return optionFunc(func(c *config) { c.linger = d })
}

// WithPing sets the interval at which a silent connection is tested. A connection that does not answer is replaced
// within three intervals. d must be positive. The default is 2 s.
func WithPing(d time.Duration) Option {
	return optionFunc(func(c *config) { c.ping = d })
}
