package oracle

import "math/bits"

// SlidingWindow counts the permits of a window and of the one before it, which it weighs by the share of it that lies
// within the last period. Windows follow a clock, and all have the same period.
type SlidingWindow struct {
	Epoch                     int64 // what the clock shows at instant 0
	begins, previous, current int64
	owed                      int64 // by the next window: a debt that this one has no room for, which counts already
}

// turn begins the window of an instant.
func (w *SlidingWindow) turn(at, per int64) {
	for begins := w.window(at, per); w.begins < begins; {
		if w.begins < begins-2*per { // no permit of it counts any more
			*w = SlidingWindow{Epoch: w.Epoch, begins: begins}
			return
		}
		w.begins, w.previous, w.current, w.owed = w.begins+per, w.current, w.owed, 0
	}
}

// window returns when the window of an instant begins.
func (w *SlidingWindow) window(at, per int64) int64 { return (at + w.Epoch) / per * per }

// Left returns how many permits are free at an instant, and less than 0 if a debt is above the limit.
func (w *SlidingWindow) Left(at int64, l Limit) int64 {
	next, per := *w, int64(l.Per)
	next.turn(at, per)
	share, rest := muldiv(next.previous, min(per, next.begins+per-w.Epoch-at), per)
	return l.Rate - next.current - next.owed - share - min(1, rest)
}

// Free implements Algorithm.
func (w *SlidingWindow) Free(at, n int64, l Limit) int64 {
	if n > l.Rate {
		return Never
	}
	at = max(at, w.begins-w.Epoch) // what was taken later is not known to be taken before
	for next, per := *w, int64(l.Per); ; {
		next.turn(at, per)
		ends := next.begins + per - w.Epoch
		switch room := l.Rate - next.current - next.owed - n; {
		case room < 0:
			at = ends
		case next.previous <= room:
			return at
		default:
			until, _ := muldiv(room, per, next.previous)
			return max(at, ends-until)
		}
	}
}

// muldiv returns a*b/c, which is at most a or at most b, and the rest.
func muldiv(a, b, c int64) (quotient, rest int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, r := bits.Div64(hi, lo, uint64(c))
	return int64(q), int64(r)
}

// Grant implements Algorithm.
func (w *SlidingWindow) Grant(at, n int64, l Limit) {
	w.turn(at, int64(l.Per))
	w.current += n
}

// GiveBack implements Settling. In their window, the permits pay what it owes first.
func (w *SlidingWindow) GiveBack(at, granted, n int64, l Limit) {
	per := int64(l.Per)
	w.turn(at, per)
	switch w.begins - w.window(granted, per) {
	case 0:
		paid := min(n, w.owed)
		w.owed, w.current = w.owed-paid, w.current-(n-paid)
	case per:
		w.previous -= n
	}
}

// Book implements Settling.
func (w *SlidingWindow) Book(at, n int64, l Limit) {
	w.turn(at, int64(l.Per))
	here := min(n, max(0, l.Rate-w.current))
	w.current, w.owed = w.current+here, w.owed+n-here
}

// Reset implements Algorithm.
func (w *SlidingWindow) Reset() { *w = SlidingWindow{Epoch: w.Epoch} }
