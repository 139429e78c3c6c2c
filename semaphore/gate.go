package semaphore

import (
	"context"
	"sync"
)

// gate counts what is under way and lets nothing new begin once it is closed.
type gate struct {
	mu     sync.Mutex
	closed bool
	n      int
	idle   chan struct{} // closed when closed and n is 0
}

func newGate() *gate { return &gate{idle: make(chan struct{})} }

func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.n++
	return true
}

// enterInside counts something begun by one who is inside, closed or not.
func (g *gate) enterInside() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n++
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n--
	if g.closed && g.n == 0 {
		close(g.idle)
	}
}

// close reports whether this call closed the gate.
func (g *gate) close() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.closed = true
	if g.n == 0 {
		close(g.idle)
	}
	return true
}

func (g *gate) isClosed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}

func (g *gate) wait(ctx context.Context) error {
	select {
	case <-g.idle:
		return nil
	default:
	}
	select {
	case <-g.idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
