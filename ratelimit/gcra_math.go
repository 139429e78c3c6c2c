package ratelimit

import (
	"math"
	"math/bits"
	"time"
)

// gcraTime is an instant or a span on the server's clock: us microseconds plus num/den, where 0 <= num < den
// and den belongs to the gcraParams.
type gcraTime struct{ us, num int64 }

func (t gcraTime) less(o gcraTime) bool { return t.us < o.us || t.us == o.us && t.num < o.num }

// roundUp returns the first whole microsecond that is not before t.
func (t gcraTime) roundUp() int64 {
	if t.num > 0 {
		return t.us + 1
	}
	return t.us
}

// gcraParams is the arithmetic of the generic cell rate algorithm (ITU-T I.371) in exact rationals. A permit
// is worth step/den microseconds, in lowest terms. Every sum stays below 2^53, so that Lua's numbers hold it
// exactly.
type gcraParams struct {
	step, den int64
	burst     int64
	full      gcraTime // the worth of a whole burst
}

func newGCRAParams(l algoLimit) gcraParams {
	step, den := int64(l.Per), l.Rate*1000
	for a, b := step, den; ; a, b = b, a%b {
		if b == 0 {
			step, den = step/a, den/a
			break
		}
	}
	p := gcraParams{step: step, den: den, burst: l.Burst}
	p.full = p.cost(l.Burst)
	return p
}

// cost returns the worth of n permits. It saturates beyond the age of the universe.
func (p gcraParams) cost(n int64) gcraTime {
	hi, lo := bits.Mul64(uint64(n), uint64(p.step))
	if hi >= uint64(p.den) {
		return gcraTime{us: math.MaxInt64 / 4}
	}
	whole, rest := bits.Div64(hi, lo, uint64(p.den))
	return gcraTime{int64(min(whole, math.MaxInt64/4)), int64(rest)}
}

func (p gcraParams) add(a, b gcraTime) gcraTime {
	s := gcraTime{a.us + b.us, a.num + b.num}
	if s.num >= p.den {
		s.us, s.num = s.us+1, s.num-p.den
	}
	return s
}

func (p gcraParams) sub(a, b gcraTime) gcraTime {
	d := gcraTime{a.us - b.us, a.num - b.num}
	if d.num < 0 {
		d.us, d.num = d.us-1, d.num+p.den
	}
	return d
}

// take moves the theoretical arrival time tat by n permits if they may be used at now, a whole microsecond. It
// does what rate_gcra.lua does.
func (p gcraParams) take(tat gcraTime, now, n int64) (gcraTime, bool) {
	if tat.us < now {
		tat = gcraTime{us: now}
	}
	to := p.add(tat, p.cost(n))
	if p.add(gcraTime{us: now}, p.full).less(to) {
		return tat, false
	}
	return to, true
}

// delay returns how long after now n permits can be used, or 0 if at once. It is rounded up to whole
// microseconds, the grain of the server's clock, so a wait for that time always suffices.
func (p gcraParams) delay(tat gcraTime, now, n int64) time.Duration {
	if tat.us < now {
		tat = gcraTime{us: now}
	}
	d := p.sub(p.add(tat, p.cost(n)), p.add(gcraTime{us: now}, p.full))
	return micros(max(0, d.roundUp()))
}

// whole returns how many permits a time is worth, rounded down.
func (p gcraParams) whole(us int64) int64 {
	hi, lo := bits.Mul64(uint64(max(0, us)), uint64(p.den))
	if hi >= uint64(p.step) {
		return math.MaxInt64
	}
	n, _ := bits.Div64(hi, lo, uint64(p.step))
	return int64(min(n, math.MaxInt64))
}

// remaining returns how many permits can be used at now.
func (p gcraParams) remaining(tat gcraTime, now int64) int64 {
	if tat.us < now {
		tat = gcraTime{us: now}
	}
	d := p.sub(p.add(gcraTime{us: now}, p.full), tat)
	if d.us < 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(d.us), uint64(p.den))
	lo, carry := bits.Add64(lo, uint64(d.num), 0)
	n, _ := bits.Div64(hi+carry, lo, uint64(p.step))
	return min(int64(n), p.burst)
}

// reset returns how long after now the whole burst can be used.
func (p gcraParams) reset(tat gcraTime, now int64) time.Duration {
	return micros(max(0, tat.roundUp()-now))
}

// burstSeconds returns the time in which a whole burst refills, rounded up. The state contains it, so that a
// state that was written under another limit can be told from a state left behind by a clock that was set back.
// If it is at most half a minute, it is 0 and left out: scripts consider no state left behind that lies less
// than a minute ahead.
func (p gcraParams) burstSeconds() int64 {
	if s := p.full.roundUp()/1e6 + 1; s > 30 {
		return s
	}
	return 0
}

// micros returns d in microseconds, or the greatest value.
func micros(us int64) time.Duration {
	return time.Duration(min(us, math.MaxInt64/int64(time.Microsecond))) * time.Microsecond
}

// millis is micros of milliseconds, 0 or more.
func millis(ms int64) time.Duration { return micros(min(max(0, ms), math.MaxInt64/1000) * 1000) }
