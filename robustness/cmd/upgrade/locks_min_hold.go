package main

import "github.com/cogwheel-go/cogwheel/redislock"

var _ = register("mutex with a minimum hold", func(c *clients, name string) object {
	return mutex(c.locks.Mutex(name, redislock.WithMinHold(never)))
})
