package wheel_test

import (
	"context"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

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
	}
	// Output: left: 1h0m0s
}

// Sessions that end after half an hour without a request.
func ExampleKeyed() {
	sessions, err := wheel.NewKeyed(func(id uint64, user string) { fmt.Println("session", id, "of", user, "has expired") })
	if err != nil {
		log.Fatal(err)
	}
	if _, _, err := sessions.Set(7, "ada", 30*time.Minute); err != nil { // it logs in
		log.Fatal(err)
	}
	fmt.Println("a request:", sessions.Reschedule(7, 30*time.Minute))
	user, ok := sessions.Remove(7) // it logs out
	fmt.Println(user, ok)
	fmt.Println("a request:", sessions.Reschedule(7, 30*time.Minute))

	left, err := sessions.Stop(context.Background()) // each has Key, Value and Left
	fmt.Println(len(left), err)
	// Output:
	// a request: true
	// ada true
	// a request: false
	// 0 <nil>
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
