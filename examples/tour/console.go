package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
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
	if number > 0 {
		title = fmt.Sprintf("%d. %s", number, title)
	}
	fmt.Printf("\n%s\n", title)
}

func (c *console) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Printf("%8.3fs  %s\n", time.Since(c.began).Seconds(), fmt.Sprintf(format, args...))
}

// progress prints the result of what every second, until stop is called.
func (c *console) progress(w *wheel.Wheel, what func() string) (stop func()) {
	line, err := w.Every(time.Second, func() { c.say("... %s", what()) })
	if err != nil {
		c.say("no progress is shown: %v", err)
	}
	return func() { line.Stop() }
}
