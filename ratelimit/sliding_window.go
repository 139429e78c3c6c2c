package ratelimit

import (
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// sliding is the algorithm of SlidingWindow: two counters, the older weighted by its overlap with the last Per.
type sliding struct{ oneLimit }

// traits: permits of waiters are not given back, so they stay until their window ends, or while a denial is trusted.
func (*sliding) traits() traits { return traits{atOnce: true, keep: keepWindow} }

func (*sliding) script() *scripts.Script { return scripts.RateSliding }

func (w *sliding) encode(key string, a *ask) scripts.Call {
	args := make([]any, 0, 7+2*len(a.runs)+3*len(a.back))
	args = a.appendRuns(append(args, w.limit.Rate, w.limit.Per.Milliseconds(), len(a.runs)))
	if a.settles() {
		args = append(args, len(a.back))
	}
	for _, part := range a.back {
		args = append(args, part.period, part.index, part.n)
	}
	if a.debt > 0 {
		args = append(args, a.debt, a.most)
	}
	return scripts.RateSliding.Call([]string{key}, args...)
}

func (w *sliding) decode(a *ask, reply []int64, at reading) (answer, error) {
	r := replyReader{reply: reply}
	s := readSliding(w, &r)
	got := answer{snapshot: s, granted: r.granted(a.runs)}
	a.readSettled(&r, &got)
	var period, index int64
	if a.stamped {
		period, index = r.next(0, exact), r.next(0, exact)
	}
	if err := r.end(); err != nil {
		return answer{}, err
	}
	got.decisions = a.replay(got.granted, s)
	if !a.needsSpans() {
		return got, nil
	}
	n := a.permits(got.granted)
	if a.callers == 0 {
		s.charge(n)
	}
	if n > 0 {
		// The bounds hold wherever in their window permits are used: the next window counts all of them.
		ends := at.sent + millis(s.length-s.elapsed-1)
		got.spans = []span{{n: n, from: at.got, until: ends, period: period, index: index}}
	}
	return got, nil
}

func (*sliding) fit(spans []span, n int64, since time.Duration) fitting {
	return fitInstant(spans, n, since)
}

func (*sliding) skip(s *span, k int64) { s.n -= k }

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

// remaining returns the number of permits that the limit leaves.
func (s *slidingSnapshot) remaining() int64 {
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
	case n <= s.remaining():
		return 0
	case room >= 0 && s.decays():
		return millis(ends - room*s.length/s.previous)
	case room >= 0 || s.foreign():
		return millis(ends)
	case n <= rate:
		return millis(ends + s.length - (rate-n)*s.length/s.current)
	}
	return s.wait(n, 0)
}

// foreign reports whether the length of the windows differs from that of the limit. Later windows may be
// shorter.
func (s *slidingSnapshot) foreign() bool { return s.length != s.sliding.limit.Per.Milliseconds() }

// result returns the result of a denial of n permits after the given time.
func (s *slidingSnapshot) result(n int64, passed time.Duration) decision {
	r := decision{Limit: s.sliding.limit.Rate, Remaining: s.remaining(), RetryAfter: max(0, s.free(n)-passed)}
	switch ends := s.length - s.elapsed; {
	case s.current > 0:
		r.ResetAfter = max(0, millis(ends+s.length)-passed)
	case s.previous > 0:
		r.ResetAfter = max(0, millis(ends)-passed)
	}
	return r
}

// cachedDenial leaves out the last millisecond: the script may have read its clock when that had nearly passed.
func (s *slidingSnapshot) cachedDenial(n int64, passed time.Duration) (decision, bool) {
	if s.free(n) <= passed+time.Millisecond {
		return decision{}, false
	}
	return s.result(n, passed), true
}

// wait is for permits that are granted one after the other: from the end of this window on, any time w has at most
// Rate*w/Per of them and those that this window leaves.
func (s *slidingSnapshot) wait(total int64, passed time.Duration) time.Duration {
	limit := s.sliding.limit
	later := total - max(0, limit.Rate-s.current)
	switch {
	case later <= 0:
		return max(0, s.free(total)-passed)
	case s.foreign():
		later = max(0, later-limit.Rate) // the next window may grant the whole Rate at once
	}
	return max(0, plus(millis(s.length-s.elapsed), times(later, limit.Per)/time.Duration(limit.Rate))-passed)
}

func (s *slidingSnapshot) state() decision { return s.result(1, 0) }

func (*slidingSnapshot) keep(time.Duration, bool) time.Duration { return 0 }

func (w *sliding) part() []any { return []any{"sliding", w.limit.Rate, w.limit.Per.Milliseconds()} }

func (*sliding) partCost(n int64) []any { return []any{n} }

func (w *sliding) readPart(r *replyReader, _, n int64, stamped bool) (snapshot, replayed, span) {
	s := readSliding(w, r)
	before := *s
	before.current -= n
	charged := span{n: n}
	if stamped {
		charged.period, charged.index = r.next(0, exact), r.next(0, exact)
	}
	return s, &before, charged
}
