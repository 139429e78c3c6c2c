package algo

import (
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// window is the algorithm of fixed windows.
type window struct{ oneLimit }

// Traits: permits of waiters are not given back, so they stay until the window ends, or while a denial is trusted.
func (*window) Traits() Traits { return Traits{Keep: keepWindow} }

func (w *window) Script() *scripts.Script { return scripts.RateWindow }

func (w *window) Encode(key string, a *Ask) scripts.Call {
	ahead := a.Ahead
	if a.Stamped {
		ahead = 0
	}
	args := make([]any, 0, 8+2*len(a.Runs)+2*len(a.Back))
	args = a.appendRuns(append(args, w.limit.Rate, w.limit.Per.Milliseconds(), ahead.Milliseconds(), len(a.Runs)))
	if a.Settles() {
		args = append(args, len(a.Back))
	}
	for _, part := range a.Back {
		args = append(args, part.Period, part.N)
	}
	if a.Debt > 0 {
		args = append(args, a.Debt, a.Most)
	}
	return scripts.RateWindow.Call([]string{key}, args...)
}

func (w *window) Decode(a *Ask, reply []int64, at Reading) (Answer, error) {
	// Replay the script: each caller learns what it saw, and each permit gets its window.
	r := replyReader{reply: reply}
	s := readWindow(w, &r)
	got := Answer{Snapshot: s, Granted: r.granted(a.Runs)}
	if slices.Max(append(got.Granted, 0)) > 0 && s.ends == 0 && (a.Ahead == 0 || a.Stamped) {
		r.bad = true // only waiters are granted permits of the next window
	}
	a.readSettled(&r, &got)
	var period int64
	if a.Stamped {
		period = r.next(0, exact)
	}
	if err := r.end(); err != nil {
		return Answer{}, err
	}
	if a.Callers > 0 {
		got.Decisions = a.replay(got.Granted, s)
		if n := a.permits(got.Granted); a.Stamped && n > 0 {
			got.Spans = []Span{s.span(n, at)}
			got.Spans[0].Period = period
		}
	} else {
		for k, r := range a.Runs {
			for left := got.Granted[k]; left > 0; {
				s.charge(r.N)
				fit := min(left-1, (w.limit.Rate-s.used)/r.N)
				s.used += fit * r.N
				left -= 1 + fit
				got.Spans = append(got.Spans, s.span((1+fit)*r.N, at))
				got.Spans[len(got.Spans)-1].Period = period
			}
		}
	}
	return got, nil
}

// Fit: at some instant the request existed and all its permits could be used.
func (*window) Fit(spans []Span, n int64, since time.Duration) Fitting {
	return fitInstant(spans, n, since)
}

// fitInstant is fit for permits that can all be used between two instants.
func fitInstant(spans []Span, n int64, since time.Duration) Fitting {
	first, left := spans[0], n
	until, from := first.Until, first.From
	for i, s := range spans {
		until, from = min(until, s.Until), max(from, s.From)
		switch {
		case since > until, i > 0 && from > until:
			return Fitting{Drop: first.N}
		case left <= s.N:
			return Fitting{At: from}
		}
		left -= s.N
	}
	return Fitting{Missing: left}
}

func (w *window) Skip(s *Span, k int64) { s.N -= k }

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
	return &windowSnapshot{window: w, used: used, begins: Millis(begins), ends: Millis(ends)}
}

// charge takes n permits, from the next window if this window has fewer left.
func (s *windowSnapshot) charge(n int64) {
	if limit := s.window.limit; s.used+n > limit.Rate {
		s.used, s.begins, s.ends = 0, s.ends, s.ends+limit.Per
	}
	s.used += n
}

// span returns n permits of the window as a span.
func (s *windowSnapshot) span(n int64, at Reading) Span {
	return Span{N: n, From: at.Got + s.begins, Until: at.Sent + s.ends - time.Millisecond}
}

// result returns the result of a denial of n permits after the given time.
func (s *windowSnapshot) granted() Decision {
	r := s.result(0, 0)
	r.RetryAfter = 0
	return r
}

func (s *windowSnapshot) result(n int64, passed time.Duration) Decision {
	limit := s.window.limit
	r := Decision{Limit: limit.Rate, RetryAfter: s.Wait(n, passed)}
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

func (s *windowSnapshot) CachedDenial(n int64, passed time.Duration) (Decision, bool) {
	if s.Wait(n, passed) == 0 {
		return Decision{}, false
	}
	return s.result(n, passed), true
}

// Wait counts full windows from the end of this window on: if the limit was lowered, the excess is no debt.
func (s *windowSnapshot) Wait(total int64, passed time.Duration) time.Duration {
	limit, ends := s.window.limit, s.ends-passed
	missing := total - max(0, limit.Rate-s.used)
	switch {
	case ends <= 0:
		return 0 // another window may have begun
	case missing <= 0:
		return max(0, s.begins-passed)
	}
	return Plus(ends, times((missing-1)/limit.Rate, limit.Per))
}

func (s *windowSnapshot) State() Decision { return s.result(1, 0) }

func (*windowSnapshot) Keep(time.Duration, bool) time.Duration { return 0 }

func (w *window) part() []any { return []any{"window", w.limit.Rate, w.limit.Per.Milliseconds()} }

func (*window) partCost(n int64) []any { return []any{n} }

func (w *window) readPart(r *replyReader, _, n int64, stamped bool) (Snapshot, replayed, Span) {
	s := readWindow(w, r)
	before := *s
	before.used -= n
	charged := Span{N: n}
	if stamped {
		charged.Period = r.next(0, exact)
	}
	return s, &before, charged
}
