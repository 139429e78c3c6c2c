package wheel

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// WithTimeout is context.WithTimeout with its deadline on the wheel: Deadline, Done, Err and context.Cause
// behave as there, including for children and for a parent with an earlier deadline. Deadline is computed from
// time.Now, also with WithClock, while the context ends by the wheel's time. Call the CancelFunc when done, as
// always. WithTimeout does not block. It panics with a *cogwheel.InvalidError if parent is nil. It needs one
// allocation for the context, one for the CancelFunc, and one for the channel when Done is called.
//
// Contexts derived from it have ended when its CancelFunc returns, and need no goroutine, as in package
// context. A context of WithTimeout ends a moment later if there is another context between the two, such as
// one of context.WithValue.
//
// A context never loses its deadline: WithMaxPendingTimeouts does not bound contexts, and if the wheel is stopped,
// the deadline moves to a runtime timer.
// Like callbacks, the context ends on time only while the executor has a free goroutine: with a Pool whose
// goroutines are all blocked, or with Inline, it may end late.
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
			c.leaveParent = p.whenEnded(c.endWithParent)
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
		if t, err := w.objects.schedule(d, c); err != nil { // the wheel is stopped
			c.useRuntimeTimer(d)
		} else if c.ended.Load() {
			t.Stop() // the parent has ended meanwhile
		}
	}
	return c, c.cancel
}

// timeoutContext is a context that ends with its parent, by its CancelFunc or by its entry on the wheel.
type timeoutContext struct {
	parent   context.Context
	deadline time.Time

	mu          sync.Mutex
	timer       Timer
	runtime     *time.Timer // instead of timer when the wheel is stopped
	leaveParent func() bool
	err         error
	byParent    bool
	endLine     func()
	children    map[*child]struct{} // children made by WithTimeout

	ended atomic.Bool // err is set; read without mu

	// line is the parent to which package context attaches the contexts derived from this one. It is created by
	// the first call of Done, which returns its channel.
	line   context.Context
	lined  sync.Once
	inLine atomic.Bool // line is set
}

// child is notified when its parent ends.
type child struct{ end func() }

// closedChan is the Done of a context that ended before the first call of Done.
var closedChan = func() chan struct{} { ch := make(chan struct{}); close(ch); return ch }()

// String describes the context in the form of package context, for logs.
func (c *timeoutContext) String() string {
	parent := fmt.Sprintf("%T", c.parent)
	if s, ok := c.parent.(fmt.Stringer); ok {
		parent = s.String()
	}
	return fmt.Sprintf("%s.wheel.WithTimeout(%v [%v])", parent, c.deadline, time.Until(c.deadline))
}

func (c *timeoutContext) Deadline() (time.Time, bool) { return c.deadline, true }

func (c *timeoutContext) Done() <-chan struct{} {
	if !c.inLine.Load() {
		if c.ended.Load() {
			return closedChan
		}
		c.lined.Do(func() {
			line, cancel := context.WithCancel((*bare)(c))
			_ = cancel // it ends with c
			c.line = line
			c.inLine.Store(true)
		})
	}
	return c.line.Done()
}

// bare is a timeoutContext without the contexts derived from it. It is the parent of its line, which ends with
// its error.
type bare timeoutContext

// silent is a Done that never closes: package context prefers AfterFunc.
var silent = make(chan struct{})

func (c *bare) Deadline() (time.Time, bool) { return c.deadline, true }
func (c *bare) Done() <-chan struct{}       { return silent }
func (c *bare) Value(key any) any           { return (*timeoutContext)(c).value(key) }

func (c *bare) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// AfterFunc is called once, with the function that ends the line, while the line is being made and is locked.
// So it must not call that function.
func (c *bare) AfterFunc(end func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		go end()
	} else {
		c.endLine = end
	}
	return func() bool { return false }
}

func (c *timeoutContext) Err() error {
	if !c.ended.Load() {
		if c.parent.Err() == nil {
			return nil
		}
		c.endWithParent() // its AfterFunc may not have run yet
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Value looks keys up in the parent. If the context has ended first, Value hides the parent's cancellation, so
// that context.Cause does not report a later cause.
func (c *timeoutContext) Value(key any) any {
	if c.inLine.Load() {
		return c.line.Value(key) // where package context looks for itself
	}
	return c.value(key)
}

func (c *timeoutContext) value(key any) any {
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

// whenEnded makes end run when this context ends, so that a child has ended when the CancelFunc returns. If the
// context has ended already, end runs on a new goroutine, because the child is locked.
func (c *timeoutContext) whenEnded(end func()) (leave func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		go end()
		return func() bool { return false }
	}
	own := &child{end}
	if c.children == nil {
		c.children = make(map[*child]struct{})
	}
	c.children[own] = struct{}{}
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		_, waiting := c.children[own]
		delete(c.children, own)
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
	endLine, children := c.endLine, c.children
	c.endLine, c.children = nil, nil
	timer, runtime, leave := c.timer, c.runtime, c.leaveParent
	c.mu.Unlock()

	timer.Stop()
	if runtime != nil {
		runtime.Stop()
	}
	if leave != nil {
		leave()
	}
	if endLine != nil {
		endLine()
	}
	for child := range children {
		child.end()
	}
}
