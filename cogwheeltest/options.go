package cogwheeltest

import "github.com/cogwheel-go/cogwheel/wheel"

// Option configures Start. Of an option that is given twice, the last one counts.
type Option interface{ apply(c *config) }

type config struct {
	clock        Clock
	wheelOptions []wheel.Option
}

type option func(c *config)

func (o option) apply(c *config) { o(c) }

// WithClock gives the server and its wheel a clock that the test moves, for tests that cannot run in a bubble
// of testing/synctest: in a bubble, Advance would not move it. The default, also for nil, is time.Now, which
// in a bubble is the bubble's time.
func WithClock(clock Clock) Option {
	return option(func(c *config) { c.clock = clock })
}

// WithWheelOptions adds options for the wheel of Server.Wheel, other than wheel.WithClock, which would part
// it from the server's time.
func WithWheelOptions(opts ...wheel.Option) Option {
	return option(func(c *config) { c.wheelOptions = opts })
}
