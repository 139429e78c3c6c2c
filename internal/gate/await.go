package gate

// Await calls f and waits until it returns or ended is closed. In the second case it returns false, f goes on
// until its own timeouts end it, and late gets its result; until then the Gate is held. If ended is nil, f
// runs on the goroutine of the caller. The caller must have entered the Gate.
func Await[T any](g *Gate, ended <-chan struct{}, f func() T, late func(T)) (result T, answered bool) {
	return Call[T]{Do: f, Late: late}.Await(g, ended)
}

// Call is what Await calls, in parts.
type Call[T any] struct {
	// Begin, if not nil, does what blocks, and waits for it until the channel that ended Await is closed. It
	// reports whether Do can now do without the network. Then Do runs on the goroutine of the caller.
	Begin func(ended <-chan struct{}) bool

	Do   func() T
	Late func(T) // gets the result of Do if nothing waits for it any more

	// Longer, if not nil, is called when ended was closed and Do has not returned. Await waits on, until the
	// channel is closed that it returns.
	Longer func() <-chan struct{}
}

// Await is the function Await.
func (c Call[T]) Await(g *Gate, ended <-chan struct{}) (result T, answered bool) {
	if ended == nil || c.Begin != nil && c.Begin(ended) {
		return c.Do(), true
	}
	done, gone := make(chan T), make(chan struct{})
	g.EnterInside()
	g.Workers.Go(func() {
		defer g.Leave()
		r := c.Do()
		select {
		case done <- r:
		case <-gone:
			c.Late(r)
		}
	})
	select {
	case r := <-done:
		return r, true
	case <-ended:
	}
	if c.Longer != nil {
		select {
		case r := <-done:
			return r, true
		case <-c.Longer():
		}
	}
	close(gone)
	return result, false
}
