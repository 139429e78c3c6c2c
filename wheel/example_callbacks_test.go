package wheel_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// A test moves the time itself. In a bubble of testing/synctest no Clock is needed.
func ExampleWithClock() {
	mock := clock.NewMock()
	w, err := wheel.New(wheel.WithClock(mock))
	if err != nil {
		log.Fatal(err)
	}
	defer w.Stop(context.Background())
	closed := make(chan string)
	if _, err := w.AfterFunc(30*time.Minute, func() { closed <- "order 7 is closed" }); err != nil {
		log.Fatal(err)
	}
	mock.Add(29 * time.Minute)
	fmt.Println("pending:", w.Len())
	mock.Add(time.Minute)
	fmt.Println(<-closed)
	// Output:
	// pending: 1
	// order 7 is closed
}

// clockOf is a Clock that is ahead of the system's.
type clockOf struct{ ahead time.Duration }

func (c clockOf) Now() time.Time                         { return time.Now().Add(c.ahead) }
func (c clockOf) After(d time.Duration) <-chan time.Time { return time.After(d) }

// Any type with these two methods is a Clock.
func ExampleClock() {
	var ahead wheel.Clock = clockOf{ahead: time.Hour}
	w, err := wheel.New(wheel.WithClock(ahead))
	if err != nil {
		log.Fatal(err)
	}
	defer w.Stop(context.Background())
	fmt.Println(w.Sleep(context.Background(), time.Millisecond)) // a constant offset changes nothing
	// Output: <nil>
}

// By default no callback waits for another. Inline is for callbacks that are known to be short; with Pool
// a bounded number runs at a time.
func ExampleExecutor() {
	for _, executor := range []wheel.Executor{wheel.Goroutines(), wheel.Inline(), wheel.Pool(2)} {
		w, err := wheel.New(wheel.WithExecutor(executor))
		if err != nil {
			log.Fatal(err)
		}
		done := make(chan struct{}, 1)
		if _, err := w.AfterFunc(0, func() { done <- struct{}{} }); err != nil {
			log.Fatal(err)
		}
		<-done
		_, err = w.Stop(context.Background())
		fmt.Println(executor, err)
	}
	// Output:
	// Goroutines <nil>
	// Inline <nil>
	// Pool(2) <nil>
}

// With Goroutines a callback that blocks delays no other.
func ExampleGoroutines() {
	w, err := wheel.New(wheel.WithExecutor(wheel.Goroutines())) // the default
	if err != nil {
		log.Fatal(err)
	}
	defer w.Stop(context.Background())
	slow, fast := make(chan struct{}), make(chan string)
	_, _ = w.AfterFunc(0, func() { <-slow })                                 // the wheel runs and is not full
	_, _ = w.AfterFunc(time.Millisecond, func() { fast <- "does not wait" }) // likewise
	fmt.Println(<-fast)
	close(slow)
	// Output: does not wait
}

// With Pool(1) callbacks run one after the other, in the order of their ticks. One that waits its turn can
// still be stopped.
func ExamplePool() {
	w, err := wheel.New(wheel.WithExecutor(wheel.Pool(1)))
	if err != nil {
		log.Fatal(err)
	}
	defer w.Stop(context.Background())
	begun, finish := make(chan struct{}), make(chan struct{})
	if _, err := w.AfterFunc(0, func() { close(begun); <-finish }); err != nil {
		log.Fatal(err)
	}
	<-begun
	waiting, err := w.AfterFunc(0, func() { fmt.Println("never") })
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("stopped in the queue:", waiting.Stop())
	close(finish)
	// Output: stopped in the queue: true
}

// Inline runs callbacks on the wheel's own goroutine, one at a time, so they need no lock among themselves.
func ExampleInline() {
	w, err := wheel.New(wheel.WithExecutor(wheel.Inline()))
	if err != nil {
		log.Fatal(err)
	}
	sum, done := 0, make(chan struct{})
	for i := range 100 {
		if _, err := w.AfterFunc(0, func() {
			if sum++; sum == 100 {
				close(done)
			}
		}); err != nil {
			log.Fatal(i, err)
		}
	}
	<-done
	fmt.Println(sum)
	_, err = w.Stop(context.Background())
	fmt.Println(err)
	// Output:
	// 100
	// <nil>
}

// A callback that panics harms no other. The panic goes to the handler, or else to the logger.
func ExampleWithPanicHandler() {
	reported := make(chan any)
	w, err := wheel.New(
		wheel.WithLogger(slog.New(slog.NewJSONHandler(os.Stderr, nil))), // for what is no panic
		wheel.WithPanicHandler(func(v any, _ []byte) { reported <- v }),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer w.Stop(context.Background())
	if _, err := w.AfterFunc(0, func() { panic("no such order") }); err != nil {
		log.Fatal(err)
	}
	fmt.Println("reported:", <-reported)
	fmt.Println("goes on:", w.Sleep(context.Background(), time.Millisecond))
	// Output:
	// reported: no such order
	// goes on: <nil>
}

// Stats are for metrics and alerts: a LongestTask above a tick hurts with Inline, and a high Lateness says that
// the process does not get to run.
func ExampleWheel_Stats() {
	w, err := wheel.New()
	if err != nil {
		log.Fatal(err)
	}
	fired := make(chan struct{})
	for range 10 {
		if _, err := w.AfterFunc(0, func() { fired <- struct{}{} }); err != nil {
			log.Fatal(err)
		}
		<-fired
	}
	if _, err := w.Stop(context.Background()); err != nil {
		log.Fatal(err)
	}
	stats := w.Stats()
	fmt.Println("fired:", stats.Fired, "pending:", stats.Pending, "panicked:", stats.Panicked)
	fmt.Println("counted:", stats.Lateness.Count(), "known:", stats.Lateness.Quantile(0.99) > 0)
	// Output:
	// fired: 10 pending: 0 panicked: 0
	// counted: 10 known: true
}

// A Histogram has the form that Prometheus expects: cumulative counts below rising bounds.
func ExampleHistogram() {
	w, stop := exampleWheel()
	defer stop()
	if err := w.Sleep(context.Background(), time.Millisecond); err != nil {
		log.Fatal(err)
	}
	lateness := w.Stats().Lateness
	counts := uint64(0)
	for bound, count := range lateness.Buckets() {
		if bound > time.Hour {
			counts = count
			break
		}
	}
	fmt.Println("at most an hour late:", counts, "of", lateness.Count())
	// Output: at most an hour late: 1 of 1
}

// Schedule refuses a rule that has no instant left.
func ExampleWheel_Schedule_over() {
	w, stop := exampleWheel()
	defer stop()
	once := wheel.ScheduleFunc(func(prev time.Time) time.Time {
		if opening := time.Date(2020, time.January, 1, 9, 0, 0, 0, time.UTC); opening.After(prev) {
			return opening
		}
		return time.Time{}
	})
	_, err := w.Schedule(once, func(time.Time) {})
	fmt.Println(errors.Is(err, wheel.ErrNoNextTime))
	// Output: true
}

// weekdays is a rule like those of a cron expression: at an hour of each weekday. Any type with Next is a
// Schedule; those of github.com/robfig/cron are, too.
type weekdays struct{ hour int }

func (d weekdays) Next(prev time.Time) time.Time {
	next := time.Date(prev.Year(), prev.Month(), prev.Day(), d.hour, 0, 0, 0, prev.Location())
	for !next.After(prev) || next.Weekday() == time.Saturday || next.Weekday() == time.Sunday {
		next = next.AddDate(0, 0, 1)
	}
	return next
}

// A Schedule tells the instants; the wheel calls the function at each of them, never twice and never at the
// same time.
func ExampleSchedule() {
	w, stop := exampleWheel()
	defer stop()
	var rule wheel.Schedule = weekdays{hour: 7}
	report, err := w.Schedule(rule, func(at time.Time) { fmt.Println("the report of", at) })
	if err != nil {
		log.Fatal(err)
	}
	defer report.Stop()

	friday := time.Date(2026, time.March, 6, 7, 0, 0, 0, time.UTC)
	fmt.Println(rule.Next(friday).Format("Monday 15:04"), report.Pending())
	// Output: Monday 07:00 true
}
