package ratelimit

import (
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// window is the algorithm of fixed windows.
type window struct{ limit Limit }

func (w *window) limitOf(snapshot) (Limit, bool) { return w.limit, true }

func (w *window) script() *scripts.Script { return scripts.RateWindow }

// encode leaves out what is to be given back: what is not used of a window ends with it.
func (w *window) encode(key string, a *ask) scripts.Call {
	args := make([]any, 0, 5+2*len(a.runs))
	args = append(args, w.limit.Rate, w.limit.Per.Milliseconds(), a.ahead.Milliseconds(), len(a.runs))
	for _, r := range a.runs {
		if r.n == 0 {
			args = append(args, 0, 0)
		} else {
			args = append(args, r.n, r.count)
		}
	}
	if a.inOrder {
		args = append(args, 1)
	}
	return scripts.RateWindow.Call([]string{key}, args...)
}

func (w *window) decode(a *ask, reply []int64, at reading) (answer, error) {
	// Replay what the script did, to tell each caller what it saw, and which window each permit is of.
	r := replyReader{reply: reply}
	s := readWindow(w, &r)
	got := answer{snapshot: s, granted: r.granted(a.runs)}
	if slices.Max(append(got.granted, 0)) > 0 && s.ends == 0 && a.ahead == 0 {
		r.bad = true // only waiters are granted permits of the window after that
	}
	if err := r.end(); err != nil {
		return answer{}, err
	}
	a.decided(got.granted, func(c *call, granted bool) {
		if granted {
			s.charge(c.n)
		}
		c.res = s.result(max(c.n, 1), 0)
		c.res.Allowed = granted || c.n == 0 && c.res.Remaining > 0
		if granted {
			c.res.Granted, c.res.RetryAfter = c.n, 0
		}
	})
	if len(a.calls) == 0 {
		for k, r := range a.runs {
			for left := got.granted[k]; left > 0; {
				s.charge(r.n)
				fit := min(left-1, (w.limit.Rate-s.used)/r.n)
				s.used += fit * r.n
				left -= 1 + fit
				got.spans = append(got.spans, s.span((1+fit)*r.n, at))
			}
		}
	}
	return got, nil
}

// fit: there is an instant at which the request was there and all its permits could be used.
func (w *window) fit(spans []span, n int64, since time.Duration) fitting {
	first, left := spans[0], n
	until, from := first.until, first.from
	for i, s := range spans {
		until, from = min(until, s.until), max(from, s.from)
		switch {
		case since > until, i > 0 && from > until:
			return fitting{drop: first.n}
		case left <= s.n:
			return fitting{at: from}
		}
		left -= s.n
	}
	return fitting{missing: left}
}

func (w *window) skip(s *span, k int64) { s.n -= k }

// windowSnapshot is the last window that was begun. It may lie ahead.
type windowSnapshot struct {
	window *window
	used   int64
	begins time.Duration // after the answer; 0 if it has begun
	ends   time.Duration // after the answer, to the millisecond; up to one less
}

// readWindow reads used permits and the milliseconds until the window begins and ends.
func readWindow(w *window, r *replyReader) *windowSnapshot {
	used, begins, ends := r.next(0, exact), r.next(-exact, exact), r.next(-exact, exact)
	return &windowSnapshot{window: w, used: used, begins: millis(begins), ends: millis(ends)}
}

// charge uses n permits, of the next window if fewer are left of this one.
func (s *windowSnapshot) charge(n int64) {
	if limit := s.window.limit; s.used+n > limit.Rate {
		s.used, s.begins, s.ends = 0, s.ends, s.ends+limit.Per
	}
	s.used += n
}

// span is n permits of the window.
func (s *windowSnapshot) span(n int64, at reading) span {
	return span{n: n, from: at.got + s.begins, until: at.sent + s.ends - time.Millisecond}
}

// result is that of a denial of n permits when the given time has passed.
func (s *windowSnapshot) result(n int64, passed time.Duration) Result {
	limit := s.window.limit
	r := Result{Limit: limit.Rate, RetryAfter: s.wait(n, passed)}
	if r.RetryAfter > 0 {
		r.RetryAfter += time.Millisecond // a key lives until its last one is over
	}
	if s.begins <= passed {
		r.Remaining = max(0, limit.Rate-s.used)
	}
	if s.used > 0 {
		r.ResetAfter = max(0, s.ends-passed)
	}
	return r
}

func (s *windowSnapshot) cachedDenial(n int64, passed time.Duration) (Result, bool) {
	if s.wait(n, passed) == 0 {
		return Result{}, false
	}
	return s.result(n, passed), true
}

// wait counts full windows from the end of this one on: usage above the limit, which was lowered, is no debt.
func (s *windowSnapshot) wait(total int64, passed time.Duration) time.Duration {
	limit, ends := s.window.limit, s.ends-passed
	missing := total - max(0, limit.Rate-s.used)
	switch {
	case ends <= 0:
		return 0 // another window may have begun
	case missing <= 0:
		return max(0, s.begins-passed)
	}
	return plus(ends, times((missing-1)/limit.Rate, limit.Per))
}

func (s *windowSnapshot) state() Result { return s.result(1, 0) }
