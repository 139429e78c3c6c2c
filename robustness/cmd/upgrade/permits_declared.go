package main

import "github.com/cogwheel-go/cogwheel/semaphore"

// Semaphores whose permits are declared.
var (
	_ = register("semaphore with permits", func(c *clients, name string) object {
		return leased(c.permits.Semaphore(name, 3, semaphore.WithLease(lease)))
	})
	_ = register("fair semaphore with permits", func(c *clients, name string) object {
		return leased(c.permits.FairSemaphore(name, 3, semaphore.WithLease(lease)))
	})
)
