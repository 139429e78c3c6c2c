// Package gate counts the operations of a Client, so that Close can refuse new ones and wait for those in flight. Its
// Workers run functions on reused goroutines.
package gate

import (
	"context"
	"sync"
	"sync/atomic"
)

// Gate counts operations in flight, and refuses new ones once it is closed. It is safe for concurrent use.
type Gate struct {
	Workers *Workers // run the functions of Await; nil: new goroutines
	OnClose func()   // if not nil, called by the first Close; it must not block

	// Enter counts before it looks whether the Gate is closed, and Wait looks at the count after Close. So either Enter
	// sees that the Gate is closed, or Wait sees the operation. Leave and Wait find each other in the same way.
	n      atomic.Int64
	closed atomic.Bool
	waited atomic.Bool // idle was made

	mu   sync.Mutex
	idle chan struct{} // closed when n is 0; nil until the next Wait
}

// Enter counts an operation until Leave. It returns false, and counts nothing, if the Gate is closed.
func (g *Gate) Enter() bool {
	g.n.Add(1)
	if g.closed.Load() {
		g.Leave()
		return false
	}
	return true
}

// EnterInside counts an operation that is started on behalf of a counted one. It succeeds even after Close.
func (g *Gate) EnterInside() { g.n.Add(1) }

// Leave ends an operation that Enter or EnterInside counted.
func (g *Gate) Leave() {
	if g.n.Add(-1) > 0 || !g.waited.Load() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.idle != nil && g.n.Load() == 0 { // else another operation was let in, whose Leave comes here
		close(g.idle)
		g.idle = nil
	}
}

// Close makes Enter return false. It returns true to its first caller only.
func (g *Gate) Close() bool {
	first := g.closed.CompareAndSwap(false, true)
	if first && g.OnClose != nil {
		g.OnClose()
	}
	return first
}

// Closed reports whether Close was called. It takes no lock.
func (g *Gate) Closed() bool { return g.closed.Load() }

// Wait blocks until no operation is in flight, or until ctx ends; then it returns the error of ctx.
func (g *Gate) Wait(ctx context.Context) error {
	g.mu.Lock()
	if g.idle == nil {
		g.idle = make(chan struct{})
	}
	idle := g.idle
	g.mu.Unlock()
	g.waited.Store(true)
	if g.n.Load() == 0 {
		return nil
	}
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
