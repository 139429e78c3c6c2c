package httplimit

// Pauses returns how many pauses a Transport has in memory.
func Pauses(t *Transport) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.paused)
}
