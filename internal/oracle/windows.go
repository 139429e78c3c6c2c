package oracle

// Windows are fixed windows: one begins with the first grant after the one before has ended, and lasts as long as the
// longest period of a grant in it.
type Windows struct {
	Early              int64 // how much sooner one may end: a grant in that time counts in the next
	Begins, Ends, Used int64 // of the last one, which waiters may have begun ahead of its time
}

// Free implements Algorithm.
func (w *Windows) Free(at, n int64, l Limit) int64 {
	switch {
	case n > l.Rate:
		return Never
	case at >= w.Ends:
		return at
	case w.Used+n <= l.Rate:
		return max(at, w.Begins)
	default:
		return w.Ends
	}
}

// Grant implements Algorithm.
func (w *Windows) Grant(at, n int64, l Limit) {
	if at >= w.Ends-w.Early {
		w.Begins, w.Ends, w.Used = at, at, 0
	}
	w.Used += n
	w.Ends = max(w.Ends, w.Begins+int64(l.Per))
}

// GiveBack implements Settling. Nothing is given back to a window when the next one has begun.
func (w *Windows) GiveBack(_, granted, n int64, _ Limit) {
	if granted >= w.Begins {
		w.Used -= n
	}
}

// Book implements Settling. The next window takes what the present one has no room for, and all of it if it was begun
// ahead of its time.
func (w *Windows) Book(at, n int64, l Limit) {
	here := n
	if at >= w.Ends {
		w.Grant(at, 0, l)
	}
	if at >= w.Begins {
		here = min(n, max(0, l.Rate-w.Used))
	}
	w.Used += here
	if n > here {
		w.Grant(w.Ends, n-here, l)
	}
}

// Reset implements Algorithm.
func (w *Windows) Reset() { *w = Windows{Early: w.Early} }
