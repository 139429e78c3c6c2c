package main

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// timers is more than most processes have pending.
const timers = 1_000_000

// compareTimers schedules a million timers and stops them, as timeouts of requests that are answered in time, on the wheel
// and with package time. Then it shows how late a thousand timers of the wheel are.
func compareTimers(_ context.Context, t *tour) error {
	w, out := t.wheel, t.out
	out.table("", "schedule", "stop", "memory")
	onWheel := make([]wheel.Timer, timers)
	err := compare(out, "wheel", func(i int) (err error) {
		onWheel[i], err = w.AfterFunc(30*time.Minute, func() {})
		return err
	}, func(i int) { onWheel[i].Stop() })
	if err != nil {
		return err
	}
	ofRuntime := make([]*time.Timer, timers)
	if err := compare(out, "time.AfterFunc", func(i int) error {
		ofRuntime[i] = time.AfterFunc(30*time.Minute, func() {})
		return nil
	}, func(i int) { ofRuntime[i].Stop() }); err != nil {
		return err
	}
	return showLateness(t)
}

// compare prints a line with the times to schedule and stop all timers, and the memory of those that are pending.
func compare(out *console, what string, schedule func(i int) error, stop func(i int)) error {
	before, began := memory(), time.Now()
	for i := range timers {
		if err := schedule(i); err != nil {
			return err
		}
	}
	scheduled := time.Since(began)
	used := memory() - before
	began = time.Now()
	for i := range timers {
		stop(i)
	}
	stopped := time.Since(began)
	out.table(what, scheduled.Round(time.Millisecond), stopped.Round(time.Millisecond), fmt.Sprint(used>>20, " MiB"))
	return nil
}

// memory returns how many bytes are in use.
func memory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// showLateness fires a thousand timers within a second. None may be early.
func showLateness(t *tour) error {
	const firing = 1000
	var (
		all          sync.WaitGroup
		mu           sync.Mutex
		least, worst = time.Duration(math.MaxInt64), time.Duration(0)
	)
	all.Add(firing)
	for i := range firing {
		after := time.Duration(i) * time.Second / firing
		deadline := time.Now().Add(after)
		if _, err := t.wheel.AfterFunc(after, func() {
			defer all.Done()
			late := time.Since(deadline)
			mu.Lock()
			defer mu.Unlock()
			least, worst = min(least, late), max(worst, late)
		}); err != nil {
			return err
		}
	}
	all.Wait()
	t.out.say("%d timers fired %v to %v after their deadlines, none before", firing, micros(least), micros(worst))
	if least < 0 {
		return fmt.Errorf("a timer fired %v before its deadline", -least)
	}
	return nil
}

func micros(d time.Duration) time.Duration { return d.Round(time.Microsecond) }
