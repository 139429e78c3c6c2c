// Package gate counts what is being done until a client is closed, and lets callers return before their calls
// do.
package gate

import (
	"context"
	"sync"
	"sync/atomic"
)

// Gate counts what is under way and lets nothing new begin once it is closed. It is safe for concurrent use.
type Gate struct {
	Workers *Workers // run what Await waits for; nil stands for new goroutines

	mu     sync.Mutex
	closed atomic.Bool // written under mu
	n      int
	idle   chan struct{} // closed when n is 0; nil while no Wait is blocked
}

// Enter counts something that begins, until Leave, unless the Gate is closed: then it returns false.
func (g *Gate) Enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed.Load() {
		return false
	}
	g.n++
	return true
}

// EnterInside counts something that has to be done for one who was inside, closed or not.
func (g *Gate) EnterInside() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n++
}

// Leave ends what Enter or EnterInside counted.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n--; g.n == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// Close lets nothing new begin and reports whether it is the first to do so.
func (g *Gate) Close() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed.CompareAndSwap(false, true)
}

// Closed reports whether Close was called. It takes no lock.
func (g *Gate) Closed() bool { return g.closed.Load() }

// Wait blocks until nothing is under way, or until ctx ends, whose error it returns.
func (g *Gate) Wait(ctx context.Context) error {
	g.mu.Lock()
	if g.n == 0 {
		g.mu.Unlock()
		return nil
	}
	if g.idle == nil {
		g.idle = make(chan struct{})
	}
	idle := g.idle
	g.mu.Unlock()
	select {
	case <-idle:
		return nil
	default:
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
