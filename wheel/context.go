package wheel

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// WithTimeout is context.WithTimeout with its deadline on the wheel: Deadline, Done, Err and context.Cause
// behave as there, including for children and when the parent has the earlier deadline. Deadline counts from
// time.Now, also with WithClock, while the context ends by the wheel's time. WithTimeout needs one allocation
// for the context and one for the CancelFunc, and Done's channel only if it is asked for. Call the CancelFunc
// when done, as always. WithTimeout does not block. It panics with a *cogwheel.InvalidError if parent is nil.
//
// Contexts made directly from it have ended when its CancelFunc returns, as with package context. Those made
// from another context in between, such as one of context.WithValue, end a moment later.
//
// If the wheel is stopped or full, the deadline moves to a runtime timer: a context never loses its deadline.
// As with callbacks, it is punctual as long as the executor has a goroutine free: with a Pool whose
// goroutines are all blocked, or with Inline, contexts end late.
func (w *Wheel) WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if parent == nil {
		panic(errNilContext)
	}
	deadline := time.Now().Add(d)
	if earlier, ok := parent.Deadline(); ok && earlier.Before(deadline) {
		return context.WithCancel(parent)
	}
	c := &timeoutContext{parent: parent, deadline: deadline}
	if parent.Done() != nil {
		c.mu.Lock() // the parent may end at once, on another goroutine
		if p, ok := parent.(*timeoutContext); ok {
			c.leaveParent = p.AfterFunc(c.endWithParent)
		} else {
			c.leaveParent = context.AfterFunc(parent, c.endWithParent)
		}
		c.mu.Unlock()
	}
	switch {
	case parent.Err() != nil:
		c.endWithParent()
	case d <= 0:
		c.end(context.DeadlineExceeded, false)
	default:
		if t, err := w.objects.schedule(d, c); err != nil {
			c.useRuntimeTimer(d)
		} else if c.ended.Load() {
			t.Stop() // the parent has ended meanwhile
		}
	}
	return c, c.cancel
}

// timeoutContext is a context that ends by its parent, its CancelFunc or its entry on the wheel.
type timeoutContext struct {
	parent   context.Context
	deadline time.Time

	mu          sync.Mutex
	timer       Timer
	runtime     *time.Timer // in place of timer once the wheel is stopped
	leaveParent func() bool
	done        chan struct{} // made when first asked for
	err         error
	byParent    bool
	after       map[*afterFunc]struct{}

	ended atomic.Bool // err is set; read without mu
}

type afterFunc struct{ f func() }

// closedChan is the Done of a context that ended before it was asked for.
var closedChan = func() chan struct{} { ch := make(chan struct{}); close(ch); return ch }()

// String describes the context as those of package context describe themselves, for logs.
func (c *timeoutContext) String() string {
	parent := fmt.Sprintf("%T", c.parent)
	if s, ok := c.parent.(fmt.Stringer); ok {
		parent = s.String()
	}
	return fmt.Sprintf("%s.wheel.WithTimeout(%v [%v])", parent, c.deadline, time.Until(c.deadline))
}

func (c *timeoutContext) Deadline() (time.Time, bool) { return c.deadline, true }

func (c *timeoutContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.err != nil {
			c.done = closedChan
		}
	}
	return c.done
}

func (c *timeoutContext) Err() error {
	if !c.ended.Load() {
		if c.parent.Err() == nil {
			return nil
		}
		c.endWithParent() // its AfterFunc may still be on the way
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Value looks keys up in the parent. Once the context has ended for a reason of its own, the parent's
// cancellation is left out, so that context.Cause does not report a later one.
func (c *timeoutContext) Value(key any) any {
	if c.ended.Load() {
		c.mu.Lock()
		own := !c.byParent
		c.mu.Unlock()
		if own {
			return context.WithoutCancel(c.parent).Value(key)
		}
	}
	return c.parent.Value(key)
}

// AfterFunc lets package context end children without a goroutine that waits. The function of a child does not
// block. It runs where this context ends, so that children have ended when the CancelFunc returns; if this
// context has ended before, it runs on a goroutine of its own, as the child is locked.
func (c *timeoutContext) AfterFunc(f func()) func() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		go f()
		return func() bool { return false }
	}
	a := &afterFunc{f}
	if c.after == nil {
		c.after = make(map[*afterFunc]struct{})
	}
	c.after[a] = struct{}{}
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		_, waiting := c.after[a]
		delete(c.after, a)
		return waiting
	}
}

func (c *timeoutContext) bind(t Timer) {
	c.mu.Lock()
	c.timer = t
	c.mu.Unlock()
}

func (c *timeoutContext) fire() { c.end(context.DeadlineExceeded, false) }

func (c *timeoutContext) cancel() { c.end(context.Canceled, false) }

func (c *timeoutContext) endWithParent() { c.end(c.parent.Err(), true) }

// useRuntimeTimer moves the deadline from the wheel to a runtime timer.
func (c *timeoutContext) useRuntimeTimer(left time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.runtime = time.AfterFunc(left, c.fire)
	}
}

func (c *timeoutContext) end(err error, byParent bool) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err, c.byParent = err, byParent
	c.ended.Store(true)
	switch {
	case c.done == nil:
		c.done = closedChan
	default:
		close(c.done)
	}
	after := c.after
	c.after = nil
	timer, runtime, leave := c.timer, c.runtime, c.leaveParent
	c.mu.Unlock()

	timer.Stop()
	if runtime != nil {
		runtime.Stop()
	}
	if leave != nil {
		leave()
	}
	for a := range after {
		a.f()
	}
}
