package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// measureLateness schedules timers at equal distances and prints how long after their deadlines they fired.
func measureLateness(ctx context.Context, w *wheel.Wheel, out *console) error {
	const (
		timers = 100_000
		over   = 3 * time.Second
	)
	var (
		late       = make([]time.Duration, timers)
		fired      atomic.Int64
		pending    sync.WaitGroup
		before     = runtime.NumGoroutine()
		goroutines atomic.Int64
	)
	sampler, err := w.Every(10*time.Millisecond, func() {
		goroutines.Store(max(goroutines.Load(), int64(runtime.NumGoroutine())))
	})
	if err != nil {
		return err
	}
	defer sampler.Stop()
	defer out.progress(w, func() string { return fmt.Sprintf("%d of %d fired", fired.Load(), timers) })()

	pending.Add(timers)
	began := time.Now()
	for i := range timers {
		d := over * time.Duration(i+1) / timers
		deadline := time.Now().Add(d)
		if _, err := w.AfterFunc(d, func() {
			late[i] = time.Since(deadline)
			fired.Add(1)
			pending.Done()
		}); err != nil {
			return err
		}
	}
	out.say("%d timers scheduled in %v", timers, time.Since(began).Round(time.Millisecond))
	if err := await(ctx, &pending); err != nil {
		return err
	}

	slices.Sort(late)
	out.say("all of them fired; lateness, and number of goroutines:\n")
	fmt.Printf("    %10s %10s %10s %10s %18s\n", "earliest", "p50", "p99", "max", "goroutines")
	fmt.Printf("    %10v %10v %10v %10v %18s\n", micros(late[0]), micros(late[timers/2]), micros(late[timers*99/100]),
		micros(late[timers-1]), fmt.Sprintf("%d, %d before", goroutines.Load(), before))
	if late[0] < 0 {
		return fmt.Errorf("a timer fired %v before its deadline", -late[0])
	}
	return nil
}

func micros(d time.Duration) time.Duration { return d.Round(time.Microsecond) }
