package main

import "github.com/cogwheel-go/cogwheel/ratelimit"

var (
	_ = register("sliding window", func(c *clients, name string) object {
		return keyed(limiter(c, ratelimit.SlidingWindow), name)
	})
	_ = register("All of sliding and fixed window", func(c *clients, name string) object {
		return all(c, name, ratelimit.SlidingWindow, ratelimit.FixedWindow)
	})
)
