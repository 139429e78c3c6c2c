package wheel

import (
	"fmt"
	"sync/atomic"
	"time"
)

// TimerTask is a task for NewTimeout, as in Netty. Run may begin before NewTimeout has returned t. If the task also
// has a method Cancelled(*Timeout), which a type assertion finds, the wheel calls it when the timeout is cancelled:
// on the goroutine of Cancel, or on that of the wheel's Stop before Stop returns. To have the compiler check the
// method, assign the task to an interface{ Cancelled(*wheel.Timeout) }.
type TimerTask interface {
	Run(t *Timeout)
}

// TimerTaskFunc is a function as a TimerTask.
type TimerTaskFunc func(t *Timeout)

// Run calls f.
func (f TimerTaskFunc) Run(t *Timeout) { f(t) }

type cancelledHook interface{ Cancelled(t *Timeout) }

// Timeout is a scheduled TimerTask with the states of Netty's Timeout: pending, then expired or cancelled for
// good. It is safe for concurrent use. AfterFunc is cheaper if the states are not needed.
type Timeout struct {
	scheduler *scheduler
	task      TimerTask
	timer     Timer
	at        int64 // deadline, nanoseconds since the wheel's origin
	state     atomic.Int32
}

const (
	timeoutPending int32 = iota
	timeoutExpired
	timeoutCancelled
)

// NewTimeout schedules task to run once, at the earliest when delay has passed, on the wheel's executor. A
// delay of zero or less runs it as soon as possible. NewTimeout does not block. It returns a
// *cogwheel.InvalidError if task is nil, ErrStopped, or ErrTooManyPending; then nothing is scheduled.
func (w *Wheel) NewTimeout(task TimerTask, delay time.Duration) (*Timeout, error) {
	if f, ok := task.(TimerTaskFunc); task == nil || ok && f == nil {
		return nil, argument.Nil("task")
	}
	t := &Timeout{scheduler: w.scheduler, task: task, at: deadlineAfter(w.scheduler.time.now(), delay)}
	if _, err := w.objects.schedule(delay, t); err != nil {
		return nil, err
	}
	return t, nil
}

// Cancel ends the timeout before its task begins. It returns true if this call ended it: the task then never
// runs, and its Cancelled hook, if it has one, has run on this goroutine. Cancel does not wait for a running
// task.
func (t *Timeout) Cancel() bool {
	if !t.end(timeoutCancelled) {
		return false
	}
	t.timer.Stop()
	t.runCancelled()
	return true
}

// IsExpired reports whether the task was called or is about to be. A timeout that is due and waits for its turn
// is not expired, nor is one that was cancelled.
func (t *Timeout) IsExpired() bool { return t.state.Load() == timeoutExpired }

// IsCancelled reports whether the timeout was cancelled, by Cancel or by the wheel's Stop.
func (t *Timeout) IsCancelled() bool { return t.state.Load() == timeoutCancelled }

// Task returns the task given to NewTimeout.
func (t *Timeout) Task() TimerTask { return t.task }

// String describes the state and the time until the deadline, for logs.
func (t *Timeout) String() string {
	state := "pending"
	switch t.state.Load() {
	case timeoutExpired:
		state = "expired"
	case timeoutCancelled:
		state = "cancelled"
	}
	left := time.Duration(t.at - t.scheduler.time.now())
	if left < 0 {
		return fmt.Sprintf("Timeout(%s, deadline %v ago, task %T)", state, -left, t.task)
	}
	return fmt.Sprintf("Timeout(%s, deadline in %v, task %T)", state, left, t.task)
}

func (t *Timeout) bind(timer Timer) { t.timer = timer }

func (t *Timeout) fire() {
	if t.end(timeoutExpired) {
		t.task.Run(t)
	}
}

// end moves the timeout from pending to its last state. Only one caller succeeds.
func (t *Timeout) end(state int32) bool {
	return t.state.CompareAndSwap(timeoutPending, state)
}

func (t *Timeout) runCancelled() {
	hook, ok := t.task.(cancelledHook)
	if !ok {
		return
	}
	defer t.scheduler.recovered()
	hook.Cancelled(t)
}
