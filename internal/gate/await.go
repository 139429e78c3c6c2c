package gate

// Await calls f on a worker, and returns its result and true, or false as soon as ended is closed. Then f continues
// until its own timeouts end it, and counts as an operation of the Gate until it returns. If ended is nil, f runs
// on the goroutine of the caller. The caller must have entered the Gate.
func Await[T any](g *Gate, ended <-chan struct{}, f func() T) (result T, answered bool) {
	if ended == nil {
		return f(), true
	}
	done := make(chan T, 1)
	g.EnterInside()
	g.Workers.Go(func() {
		defer g.Leave()
		done <- f()
	})
	select {
	case r := <-done:
		return r, true
	case <-ended:
		return result, false
	}
}
