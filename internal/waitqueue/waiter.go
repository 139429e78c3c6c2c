package waitqueue

import (
	"errors"
	"fmt"
	"sync"
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

// Waiter is one call, as an attempt sees it.
type Waiter[T any] struct {
	// Value is what was passed to Wait. The attempt may change it, also of waiters that it does not mark.
	Value T

	verdict verdict
	failure error

	once     bool
	settled  bool
	inFlight bool // part of the attempt under way
	seen     bool // was part of one
	err      error
	done     chan struct{}  // of a blocking waiter
	f        func(T, error) // of another
	stop     func() bool    // of a callback's context
	left     chan struct{}  // closed if the waiter leaves while it is in flight; nil until Left is called

	mu         *sync.Mutex // of the Group
	prev, next *Waiter[T]
}

// Left returns a channel that is closed when the waiter leaves before the attempt has returned, which need
// not go on for it then. Only attempts may call it.
func (w *Waiter[T]) Left() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left == nil {
		w.left = make(chan struct{})
		if w.settled {
			close(w.left)
		}
	}
	return w.left
}

// Waits reports whether the waiter stays for a further attempt if this one leaves it undecided.
func (w *Waiter[T]) Waits() bool { return !w.once }

// Grant says that the waiter got what it wants. Only attempts may call it.
func (w *Waiter[T]) Grant() { w.verdict = granted }

// Fail ends the waiter with an error. Only attempts may call it.
func (w *Waiter[T]) Fail(err error) { w.verdict, w.failure = failed, err }

// tellLocked ends the call.
func (w *Waiter[T]) tellLocked(v T) {
	if w.f == nil {
		w.done <- struct{}{} // has room
		return
	}
	if w.stop != nil {
		w.stop()
	}
	go w.f(v, w.err)
}
