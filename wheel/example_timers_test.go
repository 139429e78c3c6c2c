package wheel_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Options are checked by New. The defaults suit a million timeouts of seconds.
func ExampleNew() {
	w, err := wheel.New(
		wheel.WithTickDuration(10*time.Millisecond),
		wheel.WithTicksPerWheel(1024),
		wheel.WithExecutor(wheel.Pool(8)),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer w.Stop(context.Background())
	fmt.Println("tick:", w.TickDuration())

	_, err = wheel.New(wheel.WithTickDuration(24 * time.Hour))
	fmt.Println(errors.Is(err, cogwheel.ErrInvalid))
	// Output:
	// tick: 10ms
	// true
}

// Packages of one process can share the default wheel. It runs until the process ends.
func ExampleDefault() {
	done := make(chan string)
	if _, err := wheel.Default().AfterFunc(time.Millisecond, func() { done <- "fired" }); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-done)
	_, err := wheel.Default().Stop(context.Background())
	fmt.Println(errors.Is(err, wheel.ErrDefaultWheel))
	// Output:
	// fired
	// true
}

// A timeout of a request: it fires only if the answer has not stopped it before.
func ExampleWheel_AfterFunc() {
	w, stop := exampleWheel()
	defer stop()
	answer := make(chan string, 1)
	timeout, err := w.AfterFunc(30*time.Second, func() { answer <- "timed out" })
	if err != nil {
		log.Fatal(err)
	}
	answer <- "200 OK" // the server answers
	if timeout.Stop() {
		fmt.Println(<-answer)
	}
	// Output: 200 OK
}

// The handle of an entry is a small value. After the entry has ended it stays harmless.
func ExampleTimer() {
	w, stop := exampleWheel()
	defer stop()
	var timer wheel.Timer // not scheduled: expired
	fmt.Println(timer.Pending(), timer.Stop())

	timer, err := w.AfterFunc(time.Minute, func() {})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(timer.Pending(), timer.Stop(), timer.Stop())
	// Output:
	// false false
	// true true false
}

// A limit on pending entries protects the memory of a server whose clients never answer.
func ExampleWithMaxPendingTimeouts() {
	w, err := wheel.New(wheel.WithMaxPendingTimeouts(2))
	if err != nil {
		log.Fatal(err)
	}
	defer w.Stop(context.Background())
	for range 3 {
		switch _, err := w.AfterFunc(time.Hour, func() {}); {
		case errors.Is(err, wheel.ErrTooManyPending):
			fmt.Println("overloaded: refuse the request")
		case err != nil:
			log.Fatal(err)
		default:
			fmt.Println("pending:", w.Len())
		}
	}
	// Output:
	// pending: 1
	// pending: 2
	// overloaded: refuse the request
}

// Sleep needs no runtime timer, and ends with its context.
func ExampleWheel_Sleep() {
	w, stop := exampleWheel()
	defer stop()
	fmt.Println(w.Sleep(context.Background(), time.Millisecond))

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	fmt.Println(w.Sleep(ctx, time.Hour))
	// Output:
	// <nil>
	// context canceled
}

// Each request of a server has a deadline. Nearly all of them are cancelled before it, which is cheap here.
func ExampleWheel_WithTimeout_request() {
	w, stop := exampleWheel()
	defer stop()
	serve := func(request context.Context, path string) {
		ctx, cancel := w.WithTimeout(request, 30*time.Second)
		defer cancel()
		deadline, _ := ctx.Deadline()
		fmt.Println(path, "within", time.Until(deadline).Round(10*time.Second))
	}
	serve(context.Background(), "/orders")
	fmt.Println("pending:", w.Len())
	// Output:
	// /orders within 30s
	// pending: 0
}

// An entry that Stop returns is the caller's again: here, jobs are written down for the next start.
func ExampleUnprocessed() {
	w, err := wheel.New()
	if err != nil {
		log.Fatal(err)
	}
	if _, err := w.AfterFunc(time.Hour, func() { fmt.Println("invoice 7 is sent") }); err != nil {
		log.Fatal(err)
	}
	within, cancel := context.WithTimeout(context.Background(), 5*time.Second) // for callbacks that run
	defer cancel()
	rest, err := w.Stop(within)
	if err != nil {
		log.Print("callbacks still run: ", err)
	}
	for _, entry := range rest {
		fmt.Println("left:", entry.Left.Round(time.Minute))
		entry.Func() // or now
	}
	// Output:
	// left: 1h0m0s
	// invoice 7 is sent
}

// Stop waits for running callbacks, so a callback cannot stop its own wheel. It tells another goroutine to.
func ExampleWheel_Stop_fromCallback() {
	w, err := wheel.New()
	if err != nil {
		log.Fatal(err)
	}
	fatal := make(chan error, 1)
	_, err = w.AfterFunc(time.Millisecond, func() {
		_, err := w.Stop(context.Background())
		fatal <- err
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(errors.Is(<-fatal, wheel.ErrStopFromTask))
	_, err = w.Stop(context.Background())
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}

// An argument that was refused is named. Nothing was scheduled.
func ExampleInvalidError() {
	w, stop := exampleWheel()
	defer stop()
	_, err := w.Every(0, func() {})
	if invalid, ok := errors.AsType[*cogwheel.InvalidError](err); ok {
		fmt.Println(invalid.Field, "is refused:", invalid.Value)
	}
	// Output: period is refused: 0s
}
