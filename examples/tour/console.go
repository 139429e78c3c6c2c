package main

import (
	"fmt"
	"sync"
	"time"
)

// console prints lines with the time since the current step began. It is safe for concurrent use.
type console struct {
	mu    sync.Mutex
	began time.Time
}

func (c *console) step(number int, title string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.began = time.Now()
	fmt.Printf("\n%d. %s\n", number, title)
}

func (c *console) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Printf("%8.3fs  %s\n", time.Since(c.began).Seconds(), fmt.Sprintf(format, args...))
}

// table prints a row of a table.
func (c *console) table(columns ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Printf("          %-16v %10v %10v %10v\n", columns...)
}
