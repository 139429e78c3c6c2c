package gate

// Locked calls f while no Leave can close what Wait waits for.
func (g *Gate) Locked(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
}

// InFlight returns the number of operations.
func (g *Gate) InFlight() int64 { return g.n.Load() }
