package ratelimit

import (
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// window is the algorithm of fixed windows.
type window struct{ oneLimit }

// traits: permits of waiters are not given back, so they stay until the window ends, or while a denial is trusted.
func (*window) traits() traits { return traits{keep: keepWindow} }

func (w *window) script() *scripts.Script { return scripts.RateWindow }

func (w *window) encode(key string, a *ask) scripts.Call {
	ahead := a.ahead
	if a.stamped {
		ahead = 0
	}
	args := make([]any, 0, 8+2*len(a.runs)+2*len(a.back))
	args = a.appendRuns(append(args, w.limit.Rate, w.limit.Per.Milliseconds(), ahead.Milliseconds(), len(a.runs)))
	if a.settles() {
		args = append(args, len(a.back))
	}
	for _, part := range a.back {
		args = append(args, part.period, part.n)
	}
	if a.debt > 0 {
		args = append(args, a.debt, a.most)
	}
	return scripts.RateWindow.Call([]string{key}, args...)
}

func (w *window) decode(a *ask, reply []int64, at reading) (answer, error) {
	// Replay the script: each caller learns what it saw, and each permit gets its window.
	r := replyReader{reply: reply}
	s := readWindow(w, &r)
	got := answer{snapshot: s, granted: r.granted(a.runs)}
	if slices.Max(append(got.granted, 0)) > 0 && s.ends == 0 && (a.ahead == 0 || a.stamped) {
		r.bad = true // only waiters are granted permits of the next window
	}
	a.readSettled(&r, &got)
	var period int64
	if a.stamped {
		period = r.next(0, exact)
	}
	if err := r.end(); err != nil {
		return answer{}, err
	}
	if a.callers > 0 {
		got.decisions = a.replay(got.granted, s)
		if n := a.permits(got.granted); a.stamped && n > 0 {
			got.spans = []span{s.span(n, at)}
			got.spans[0].period = period
		}
	} else {
		for k, r := range a.runs {
			for left := got.granted[k]; left > 0; {
				s.charge(r.n)
				fit := min(left-1, (w.limit.Rate-s.used)/r.n)
				s.used += fit * r.n
				left -= 1 + fit
				got.spans = append(got.spans, s.span((1+fit)*r.n, at))
				got.spans[len(got.spans)-1].period = period
			}
		}
	}
	return got, nil
}

// fit: at some instant the request existed and all its permits could be used.
func (*window) fit(spans []span, n int64, since time.Duration) fitting {
	return fitInstant(spans, n, since)
}

// fitInstant is fit for permits that can all be used between two instants.
func fitInstant(spans []span, n int64, since time.Duration) fitting {
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

// windowSnapshot is the window begun last, which may begin in the future.
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

// charge takes n permits, from the next window if this window has fewer left.
func (s *windowSnapshot) charge(n int64) {
	if limit := s.window.limit; s.used+n > limit.Rate {
		s.used, s.begins, s.ends = 0, s.ends, s.ends+limit.Per
	}
	s.used += n
}

// span returns n permits of the window as a span.
func (s *windowSnapshot) span(n int64, at reading) span {
	return span{n: n, from: at.got + s.begins, until: at.sent + s.ends - time.Millisecond}
}

// result returns the result of a denial of n permits after the given time.
func (s *windowSnapshot) result(n int64, passed time.Duration) decision {
	limit := s.window.limit
	r := decision{Limit: limit.Rate, RetryAfter: s.wait(n, passed)}
	if r.RetryAfter > 0 {
		r.RetryAfter += time.Millisecond // the key lives until its last millisecond has passed
	}
	if s.begins <= passed {
		r.Remaining = max(0, limit.Rate-s.used)
	}
	if s.used > 0 {
		r.ResetAfter = max(0, s.ends-passed)
	}
	return r
}

func (s *windowSnapshot) cachedDenial(n int64, passed time.Duration) (decision, bool) {
	if s.wait(n, passed) == 0 {
		return decision{}, false
	}
	return s.result(n, passed), true
}

// wait counts full windows from the end of this window on: if the limit was lowered, the excess is no debt.
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

func (s *windowSnapshot) state() decision { return s.result(1, 0) }

func (*windowSnapshot) keep(time.Duration, bool) time.Duration { return 0 }

func (w *window) part() []any { return []any{"window", w.limit.Rate, w.limit.Per.Milliseconds()} }

func (*window) partCost(n int64) []any { return []any{n} }

func (w *window) readPart(r *replyReader, _, n int64, stamped bool) (snapshot, replayed, span) {
	s := readWindow(w, r)
	before := *s
	before.used -= n
	charged := span{n: n}
	if stamped {
		charged.period = r.next(0, exact)
	}
	return s, &before, charged
}
