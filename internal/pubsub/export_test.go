package pubsub

// Running reports whether the hub's goroutine is alive.
func (h *Hub) Running() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.running
}
