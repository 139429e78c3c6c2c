package wheel_test

// What no implementation can go below: these do less than a timer has to.

import (
	"sync"
	"testing"
	"time"
)

// newLocks reads the clock and locks an uncontended mutex when it schedules, and locks it again
// when it stops: what a thread-safe timer does besides its own work. For one goroutine.
func newLocks(*testing.B) peer[struct{}] {
	var mu sync.Mutex
	origin := time.Now()
	var deadline time.Duration
	return peer[struct{}]{
		name: "floor",
		after: func(d time.Duration, _ func()) struct{} {
			now := time.Since(origin)
			mu.Lock()
			deadline = now + d
			mu.Unlock()
			return struct{}{}
		},
		stop: func(struct{}) {
			mu.Lock()
			deadline = 0
			mu.Unlock()
		},
		close: func() { _ = deadline },
	}
}

// newFunctions keeps a function for each timer, in large blocks, and nothing else: what the garbage collector
// has to look at for any timer that calls a function.
func newFunctions(*testing.B) peer[int] {
	const block = 1 << 16
	var blocks [][]func()
	n := 0
	return peer[int]{
		name: "floor",
		after: func(_ time.Duration, f func()) int {
			if n%block == 0 {
				blocks = append(blocks, make([]func(), block))
			}
			blocks[n/block][n%block] = f
			n++
			return n - 1
		},
		stop:  func(i int) { blocks[i/block][i%block] = nil },
		close: func() {},
	}
}

// newCalendar keeps a slice of functions for each millisecond of the next minute and calls them when it is
// over: nothing can be stopped and nothing is checked.
func newCalendar(*testing.B) peer[struct{}] {
	const minute = 60_000
	var mu sync.Mutex // guards what follows
	slots := make([][]func(), minute)
	next := 0
	origin, quit := time.Now(), make(chan struct{})
	millisecond := func(d time.Duration) int { return int((time.Since(origin) + d) / time.Millisecond) }
	take := func() (due []func(), more bool) {
		mu.Lock()
		defer mu.Unlock()
		if next >= millisecond(0) {
			return nil, false
		}
		due, slots[next%minute] = slots[next%minute], nil
		next++
		return due, true
	}
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-quit:
				return
			}
			for due, more := take(); more; due, more = take() {
				for _, f := range due {
					f()
				}
			}
		}
	}()
	return peer[struct{}]{
		name: "floor",
		after: func(d time.Duration, f func()) struct{} {
			mu.Lock()
			slot := max(millisecond(d), next) % minute
			slots[slot] = append(slots[slot], f)
			mu.Unlock()
			return struct{}{}
		},
		close: func() { close(quit) },
	}
}
