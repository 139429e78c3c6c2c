package wheel_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// closing is a task in the form of Netty's. Cancelled is optional.
type closing struct{ connection string }

func (c closing) Run(*wheel.Timeout)       { fmt.Println("closing", c.connection) }
func (c closing) Cancelled(*wheel.Timeout) { fmt.Println("keeping", c.connection) }

// A TimerTask is an object with a method Run. If it also has Cancelled, that is called by Cancel.
func ExampleTimerTask() {
	w, stop := exampleWheel()
	defer stop()
	timeout, err := w.NewTimeout(closing{"connection 3"}, time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(timeout.Cancel(), timeout.IsCancelled(), timeout.IsExpired())
	// Output:
	// keeping connection 3
	// true true false
}

// A Timeout has the states of Netty's: pending, then expired or cancelled for good.
func ExampleTimeout() {
	w, stop := exampleWheel()
	defer stop()
	ran := make(chan *wheel.Timeout)
	task := wheel.TimerTaskFunc(func(t *wheel.Timeout) { ran <- t })
	pending, err := w.NewTimeout(task, time.Hour)
	if err != nil {
		log.Fatal(err)
	}
	expired, err := w.NewTimeout(task, time.Millisecond)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-ran == expired)
	fmt.Println(expired.IsExpired(), expired.IsCancelled(), expired.Cancel())
	fmt.Println(pending.IsExpired(), pending.IsCancelled(), pending.Cancel())
	// Output:
	// true
	// true false false
	// false false true
}

// TimerTaskFunc lets a function be a task.
func ExampleTimerTaskFunc() {
	w, stop := exampleWheel()
	defer stop()
	done := make(chan string)
	task := wheel.TimerTaskFunc(func(*wheel.Timeout) { done <- "retrying" })
	if _, err := w.NewTimeout(task, time.Millisecond); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-done)
	// Output: retrying
}

// A Typed keeps values instead of closures: here the ids of sessions, which the garbage collector does not look
// at.
func ExampleTyped() {
	expired := make(chan uint64)
	sessions, err := wheel.NewTyped(func(id uint64) { expired <- id })
	if err != nil {
		log.Fatal(err)
	}
	if _, err := sessions.Add(time.Millisecond, 1); err != nil {
		log.Fatal(err)
	}
	idle, err := sessions.Add(30*time.Minute, 2)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("expired:", <-expired)
	fmt.Println("used again:", idle.Reschedule(30*time.Minute), "pending:", sessions.Len())
	_, err = sessions.Stop(context.Background())
	fmt.Println(err)
	// Output:
	// expired: 1
	// used again: true pending: 1
	// <nil>
}

// Stop returns the values that have not fired, with what was left of their time.
func ExampleUnprocessedValue() {
	reminders, err := wheel.NewTyped(func(text string) { fmt.Println(text) })
	if err != nil {
		log.Fatal(err)
	}
	if _, err := reminders.Add(2*time.Hour, "call the bank"); err != nil {
		log.Fatal(err)
	}
	rest, err := reminders.Stop(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, reminder := range rest { // to be written down for the next start
		fmt.Println(reminder.Value, "in", reminder.Left.Round(time.Minute))
	}
	// Output: call the bank in 2h0m0s
}
