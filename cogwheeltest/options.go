package cogwheeltest

import "github.com/cogwheel-go/cogwheel/wheel"

// Option configures Start. If an option is given twice, the last one counts.
type Option interface{ apply(c *config) }

type config struct {
	clock        Clock
	wheelOptions []wheel.Option
}

type option func(c *config)

func (o option) apply(c *config) { o(c) }

// WithClock sets a clock that the test moves, for the server and its wheel. It is for tests that cannot run in a bubble
// of testing/synctest: in a bubble, Advance does not move the clock. The default, also for nil, is time.Now, which in a
// bubble is the bubble's time.
func WithClock(clock Clock) Option {
	return option(func(c *config) { c.clock = clock })
}

// WithWheelOptions sets the options of the wheel of Server.Wheel. Use WithClock instead of wheel.WithClock: the wheel
// and the server need the same time.
func WithWheelOptions(opts ...wheel.Option) Option {
	return option(func(c *config) { c.wheelOptions = opts })
}
