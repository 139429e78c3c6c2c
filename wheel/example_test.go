package wheel_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// exampleWheel makes a wheel; stop it when done. A service may share wheel.Default() instead.
func exampleWheel() (w *wheel.Wheel, stop func()) {
	w, err := wheel.New()
	if err != nil {
		panic(err)
	}
	return w, func() { _, _ = w.Stop(context.Background()) }
}

func Example() {
	w, err := wheel.New()
	if err != nil {
		panic(err)
	}
	closed := make(chan string, 1)
	// An order that is not paid in time is closed; this one is paid.
	paid, _ := w.AfterFunc(time.Hour, func() { closed <- "order 1" })
	_, _ = w.AfterFunc(time.Millisecond, func() { closed <- "order 2" })
	fmt.Println("stopped in time:", paid.Stop())
	fmt.Println("closed:", <-closed)
	rest, err := w.Stop(context.Background())
	fmt.Println("left:", len(rest), err)
	// Output:
	// stopped in time: true
	// closed: order 2
	// left: 0 <nil>
}

func ExampleTimer_Reschedule() {
	w, stop := exampleWheel()
	defer stop()
	idle, _ := w.AfterFunc(time.Minute, func() { fmt.Println("idle") })
	fmt.Println("traffic:", idle.Reschedule(time.Minute))
	fmt.Println("closed:", idle.Stop())
	fmt.Println("too late:", idle.Reschedule(time.Minute))
	// Output:
	// traffic: true
	// closed: true
	// too late: false
}

func ExampleWheel_Every() {
	w, stop := exampleWheel()
	defer stop()
	beats := make(chan int)
	n := 0
	heartbeat, _ := w.Every(time.Millisecond, func() { n++; beats <- n })
	fmt.Println(<-beats, <-beats, <-beats)
	heartbeat.Stop()
	select { // a firing may have been in progress
	case <-beats:
	default:
	}
	// Output: 1 2 3
}

func ExampleWheel_Schedule() {
	w, stop := exampleWheel()
	defer stop()
	fired := make(chan int)
	n := 0
	thrice := wheel.ScheduleFunc(func(prev time.Time) time.Time {
		if n == 3 {
			return time.Time{} // there is no further instant
		}
		return prev.Add(time.Millisecond)
	})
	if _, err := w.Schedule(thrice, func(time.Time) { n++; fired <- n }); err != nil {
		panic(err)
	}
	fmt.Println(<-fired, <-fired, <-fired)
	// Output: 1 2 3
}

func ExampleScheduleFunc() {
	// On the first of each month at six in the morning.
	monthly := wheel.ScheduleFunc(func(prev time.Time) time.Time {
		next := time.Date(prev.Year(), prev.Month(), 1, 6, 0, 0, 0, prev.Location())
		if !next.After(prev) {
			next = time.Date(prev.Year(), prev.Month()+1, 1, 6, 0, 0, 0, prev.Location())
		}
		return next
	})
	newYear := time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	first := monthly.Next(newYear)
	fmt.Println(first)
	fmt.Println(monthly.Next(first))
	// Output:
	// 2026-01-01 06:00:00 +0000 UTC
	// 2026-02-01 06:00:00 +0000 UTC
}

func ExampleExecutorFunc() {
	tasks := make(chan func(), 100)
	var workers sync.WaitGroup
	for range 4 { // the caller's own pool
		workers.Go(func() {
			for task := range tasks {
				task()
			}
		})
	}
	w, err := wheel.New(wheel.WithExecutor(wheel.ExecutorFunc(func(task func()) {
		select {
		case tasks <- task:
		default: // the pool has no room: run must not block
			go task()
		}
	})))
	if err != nil {
		panic(err)
	}
	done := make(chan string)
	_, _ = w.AfterFunc(time.Millisecond, func() { done <- "done by the pool" })
	fmt.Println(<-done)
	_, _ = w.Stop(context.Background()) // no task begins a callback after this
	close(tasks)
	workers.Wait()
	// Output: done by the pool
}

func ExampleWheel_NewTimeout() {
	w, stop := exampleWheel()
	defer stop()
	var wg sync.WaitGroup
	wg.Add(1)
	expired, _ := w.NewTimeout(wheel.TimerTaskFunc(func(t *wheel.Timeout) {
		fmt.Println("expired:", t.IsExpired())
		wg.Done()
	}), time.Millisecond)
	wg.Wait()
	fmt.Println("cancelled too late:", expired.Cancel())
	// Output:
	// expired: true
	// cancelled too late: false
}

func ExampleWheel_WithTimeout() {
	w, stop := exampleWheel()
	defer stop()
	ctx, cancel := w.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	<-ctx.Done()
	fmt.Println(ctx.Err(), errors.Is(context.Cause(ctx), context.DeadlineExceeded))
	// Output: context deadline exceeded true
}

func ExampleWheel_Stop() {
	w, err := wheel.New()
	if err != nil {
		panic(err)
	}
	_, _ = w.AfterFunc(time.Hour, func() { fmt.Println("flushed") })
	rest, err := w.Stop(context.Background())
	if err != nil {
		panic(err)
	}
	for _, u := range rest { // what has not fired is the caller's again
		u.Func()
	}
	_, err = w.AfterFunc(0, func() {})
	fmt.Println(err)
	// Output:
	// flushed
	// wheel: stopped
}

func ExampleNewTyped() {
	expired := make(chan uint64, 1)
	sessions, err := wheel.NewTyped(func(id uint64) { expired <- id }) // no closure per session
	if err != nil {
		panic(err)
	}
	_, _ = sessions.Add(time.Millisecond, 42)
	fmt.Println("expired:", <-expired)
	rest, err := sessions.Stop(context.Background())
	fmt.Println("left:", len(rest), err)
	// Output:
	// expired: 42
	// left: 0 <nil>
}
