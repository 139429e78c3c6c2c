package algo

import (
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// sliding is the algorithm of SlidingWindow: two counters, the older weighted by its overlap with the last Per.
type sliding struct{ oneLimit }

// Traits: permits of waiters are not given back, so they stay until their window ends, or while a denial is trusted.
func (*sliding) Traits() Traits { return Traits{AtOnce: true, Keep: keepWindow} }

func (*sliding) Script() *scripts.Script { return scripts.RateSliding }

func (w *sliding) Encode(key string, a *Ask) scripts.Call {
	args := make([]any, 0, 7+2*len(a.Runs)+3*len(a.Back))
	args = a.appendRuns(append(args, w.limit.Rate, w.limit.Per.Milliseconds(), len(a.Runs)))
	if a.Settles() {
		args = append(args, len(a.Back))
	}
	for _, part := range a.Back {
		args = append(args, part.Period, part.index, part.N)
	}
	if a.Debt > 0 {
		args = append(args, a.Debt, a.Most)
	}
	return scripts.RateSliding.Call([]string{key}, args...)
}

func (w *sliding) Decode(a *Ask, reply []int64, at Reading) (Answer, error) {
	r := replyReader{reply: reply}
	s := readSliding(w, &r)
	got := Answer{Snapshot: s, Granted: r.granted(a.Runs)}
	a.readSettled(&r, &got)
	var period, index int64
	if a.Stamped {
		period, index = r.next(0, exact), r.next(0, exact)
	}
	if err := r.end(); err != nil {
		return Answer{}, err
	}
	got.Decisions = a.replay(got.Granted, s)
	if !a.needsSpans() {
		return got, nil
	}
	n := a.permits(got.Granted)
	if a.Callers == 0 {
		s.charge(n)
	}
	if n > 0 {
		// The bounds hold wherever in their window permits are used: the next window counts all of them.
		ends := at.Sent + Millis(s.length-s.elapsed-1)
		got.Spans = []Span{{N: n, From: at.Got, Until: ends, Period: period, index: index}}
	}
	return got, nil
}

func (*sliding) Fit(spans []Span, n int64, since time.Duration) Fitting {
	return fitInstant(spans, n, since)
}

func (*sliding) Skip(s *Span, k int64) { s.N -= k }

// slidingSnapshot has the two counters. Times are in milliseconds, as in the script.
type slidingSnapshot struct {
	sliding           *sliding
	previous, current int64 // current includes what is owed to the next window
	length            int64 // length of both windows: that of the limit, or longer; 0 for a state of a later version
	elapsed           int64 // since the current window began; negative if it lies ahead, because the clock was set back
}

func readSliding(w *sliding, r *replyReader) *slidingSnapshot {
	const longest, most = int64(maxPer / time.Millisecond), 2 * maxRate
	s := &slidingSnapshot{sliding: w, previous: r.next(0, most), current: r.next(0, most), length: r.next(0, longest)}
	s.elapsed = r.next(-2*longest, s.length-1)
	return s
}

func (s *slidingSnapshot) charge(n int64) { s.current += n }

// decays reports whether the share of previous shrinks during the window, as it does if its product with the length is
// exact in Lua. Otherwise all of it counts until the window ends: a limit with a shorter Per has a higher Rate.
func (s *slidingSnapshot) decays() bool {
	return s.length > 0 && s.previous <= (exact-1)/s.length
}

// Remaining returns the number of permits that the limit leaves.
func (s *slidingSnapshot) Remaining() int64 {
	share := s.previous
	if s.decays() {
		share -= s.previous * max(0, s.elapsed) / s.length // the share is rounded up
	}
	return max(0, s.sliding.limit.Rate-s.current-share)
}

// free returns how long after the script n permits are there at once, counted from the millisecond in which the script
// ran. It is a lower bound for windows of a foreign length, for more than Rate, and after a debt that exceeds this
// window, and otherwise exact. In a window,
// ceil(previous*(length-elapsed)/length) <= room holds from elapsed = length - floor(room*length/previous) on.
func (s *slidingSnapshot) free(n int64) time.Duration {
	rate, ends := s.sliding.limit.Rate, s.length-s.elapsed
	room := rate - s.current - n
	switch {
	case n <= s.Remaining():
		return 0
	case room >= 0 && s.decays():
		return Millis(ends - room*s.length/s.previous)
	case room >= 0 || s.foreign():
		return Millis(ends)
	case n <= rate:
		return Millis(ends + s.length - (rate-n)*s.length/s.current)
	}
	return s.Wait(n, 0)
}

// foreign reports whether the length of the windows differs from that of the limit. Later windows may be
// shorter.
func (s *slidingSnapshot) foreign() bool { return s.length != s.sliding.limit.Per.Milliseconds() }

// result returns the result of a denial of n permits after the given time.
func (s *slidingSnapshot) granted() Decision {
	r := s.result(0, 0)
	r.RetryAfter = 0
	return r
}

func (s *slidingSnapshot) result(n int64, passed time.Duration) Decision {
	r := Decision{Limit: s.sliding.limit.Rate, Remaining: s.Remaining(), RetryAfter: max(0, s.free(n)-passed)}
	switch ends := s.length - s.elapsed; {
	case s.current > 0:
		r.ResetAfter = max(0, Millis(ends+s.length)-passed)
	case s.previous > 0:
		r.ResetAfter = max(0, Millis(ends)-passed)
	}
	return r
}

// CachedDenial leaves out the last millisecond: the script may have read its clock when that had nearly passed.
func (s *slidingSnapshot) CachedDenial(n int64, passed time.Duration) (Decision, bool) {
	if s.free(n) <= passed+time.Millisecond {
		return Decision{}, false
	}
	return s.result(n, passed), true
}

// Wait is for permits that are granted one after the other: from the end of this window on, any time w has at most
// Rate*w/Per of them and those that this window leaves.
func (s *slidingSnapshot) Wait(total int64, passed time.Duration) time.Duration {
	limit := s.sliding.limit
	later := total - max(0, limit.Rate-s.current)
	switch {
	case later <= 0:
		return max(0, s.free(total)-passed)
	case s.foreign():
		later = max(0, later-limit.Rate) // the next window may grant the whole Rate at once
	}
	return max(0, Plus(Millis(s.length-s.elapsed), times(later, limit.Per)/time.Duration(limit.Rate))-passed)
}

func (s *slidingSnapshot) State() Decision { return s.result(1, 0) }

func (*slidingSnapshot) Keep(time.Duration, bool) time.Duration { return 0 }

func (w *sliding) part() []any { return []any{"sliding", w.limit.Rate, w.limit.Per.Milliseconds()} }

func (*sliding) partCost(n int64) []any { return []any{n} }

func (w *sliding) readPart(r *replyReader, _, n int64, stamped bool) (Snapshot, replayed, Span) {
	s := readSliding(w, r)
	before := *s
	before.current -= n
	charged := Span{N: n}
	if stamped {
		charged.Period, charged.index = r.next(0, exact), r.next(0, exact)
	}
	return s, &before, charged
}
