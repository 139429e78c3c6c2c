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

// WithLinger sets how long at least a channel stays subscribed after its last
// Subscription was closed, and at most twice that. Default 5 s; 0 unsubscribes
// at once.
func WithLinger(d time.Duration) Option {
	return optionFunc(func(c *config) { c.linger = d })
}

// WithPing sets the interval at which a connection that has been silent is
// tested. One that does not answer is replaced within three intervals. Default 2 s;
// it must be positive.
func WithPing(d time.Duration) Option {
	return optionFunc(func(c *config) { c.ping = d })
}
