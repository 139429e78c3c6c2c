package gate

// Await calls f and waits until it returns or ended is closed. In the second case it returns false, f goes on
// until its own timeouts end it, and late gets its result; until then the Gate is held. If ended is nil, f
// runs on the goroutine of the caller. The caller must have entered the Gate.
func Await[T any](g *Gate, ended <-chan struct{}, f func() T, late func(T)) (result T, answered bool) {
	if ended == nil {
		return f(), true
	}
	done, gone := make(chan T), make(chan struct{})
	g.EnterInside()
	g.Workers.Go(func() {
		defer g.Leave()
		r := f()
		select {
		case done <- r:
		case <-gone:
			late(r)
		}
	})
	select {
	case r := <-done:
		return r, true
	case <-ended:
		close(gone)
		return result, false
	}
}
