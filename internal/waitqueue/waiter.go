package waitqueue

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrNotServed matches every *NotServedError.
var ErrNotServed = errors.New("waitqueue: not served")

// NotServedError is what Try returns if it was not granted.
type NotServedError struct {
	Again time.Duration // until the next attempt
}

func (e *NotServedError) Error() string {
	return fmt.Sprintf("%v, next attempt in %v", ErrNotServed, e.Again)
}

// Unwrap returns ErrNotServed.
func (e *NotServedError) Unwrap() error { return ErrNotServed }

type verdict uint8

const (
	undecided verdict = iota
	granted
	failed
)

// Waiter is a call in a queue.
type Waiter[T any] struct {
	// Value is the argument of Wait. Build and Read may change it, also for waiters that they do not mark.
	Value T

	verdict verdict
	failure error

	once       bool // of Try
	settled    bool
	inFlight   bool // part of the attempt in flight
	seen       bool // was part of an attempt
	err        error
	done       chan T          // of a blocking waiter
	f          func(T, error)  // of WaitFunc and TryFunc
	stop       func() bool     // ends the watch on the context of WaitFunc and TryFunc
	ctx        context.Context // of the call
	prev, next *Waiter[T]
}

// Waits reports whether the waiter stays in the queue if the attempt leaves it undecided.
func (w *Waiter[T]) Waits() bool { return !w.once }

// Grant marks the waiter as granted. Only Build and Read may call it.
func (w *Waiter[T]) Grant() { w.verdict = granted }

// Fail marks the waiter as failed. Only Build and Read may call it.
func (w *Waiter[T]) Fail(err error) { w.verdict, w.failure = failed, err }

// tellLocked returns the outcome to the caller.
func (w *Waiter[T]) tellLocked(v T) {
	if w.f == nil {
		w.done <- v // has room
		return
	}
	if w.stop != nil {
		w.stop()
	}
	go w.f(v, w.err)
}
