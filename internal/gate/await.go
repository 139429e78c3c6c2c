package gate

// Await calls f and waits until it returns or ended is closed. In the second case it returns false, f goes on
// until its own timeouts end it, and late gets its result; until then the Gate is held. If ended is nil, f
// runs on the goroutine of the caller. The caller must have entered the Gate.
func Await[T any](g *Gate, ended <-chan struct{}, f func() T, late func(T)) (result T, answered bool) {
	return AwaitLonger(g, ended, nil, f, late)
}

// AwaitLonger is Await for a caller that waits on after ended was closed, until the channel is closed that longer
// returns. longer is called when ended was closed and f has not returned.
func AwaitLonger[T any](
	g *Gate, ended <-chan struct{}, longer func() <-chan struct{}, f func() T, late func(T),
) (result T, answered bool) {
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
	}
	if longer != nil {
		select {
		case r := <-done:
			return r, true
		case <-longer():
		}
	}
	close(gone)
	return result, false
}
