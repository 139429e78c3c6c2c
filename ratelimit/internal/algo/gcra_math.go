package algo

import (
	"math"
	"math/bits"
	"time"
)

// GCRATime is an instant or a span on the server's clock: us microseconds plus num/den, where 0 <= num < den
// and den belongs to the gcraParams.
type GCRATime struct{ Micros, Num int64 }

// Less reports whether t is before o.
func (t GCRATime) Less(o GCRATime) bool {
	return t.Micros < o.Micros || t.Micros == o.Micros && t.Num < o.Num
}

// RoundUp returns the first whole microsecond that is not before t.
func (t GCRATime) RoundUp() int64 {
	if t.Num > 0 {
		return t.Micros + 1
	}
	return t.Micros
}

// GCRAParams is the arithmetic of the generic cell rate algorithm (ITU-T I.371) in exact rationals. A permit
// is worth step/den microseconds, in lowest terms. Every sum stays below 2^53, so that Lua's numbers hold it
// exactly.
type GCRAParams struct {
	step, Den int64
	burst     int64
	one       GCRATime // the worth of a permit
	full      GCRATime // and of a whole burst
}

// NewGCRAParams returns the arithmetic of a valid limit.
func NewGCRAParams(l Limit) GCRAParams {
	step, den := int64(l.Per), l.Rate*1000
	for a, b := step, den; ; a, b = b, a%b {
		if b == 0 {
			step, den = step/a, den/a
			break
		}
	}
	p := GCRAParams{step: step, Den: den, burst: l.Burst}
	p.one, p.full = p.worth(1), p.worth(l.Burst)
	return p
}

// Cost returns the worth of n permits. It saturates beyond the age of the universe.
func (p GCRAParams) Cost(n int64) GCRATime {
	if n == 1 {
		return p.one
	}
	return p.worth(n)
}

func (p GCRAParams) worth(n int64) GCRATime {
	hi, lo := bits.Mul64(uint64(n), uint64(p.step))
	if hi >= uint64(p.Den) {
		return GCRATime{Micros: math.MaxInt64 / 4}
	}
	whole, rest := bits.Div64(hi, lo, uint64(p.Den))
	return GCRATime{int64(min(whole, math.MaxInt64/4)), int64(rest)}
}

// Add returns the sum of two times.
func (p GCRAParams) Add(a, b GCRATime) GCRATime {
	s := GCRATime{a.Micros + b.Micros, a.Num + b.Num}
	if s.Num >= p.Den {
		s.Micros, s.Num = s.Micros+1, s.Num-p.Den
	}
	return s
}

func (p GCRAParams) sub(a, b GCRATime) GCRATime {
	d := GCRATime{a.Micros - b.Micros, a.Num - b.Num}
	if d.Num < 0 {
		d.Micros, d.Num = d.Micros-1, d.Num+p.Den
	}
	return d
}

// Take moves the theoretical arrival time tat by n permits if they may be used at now, a whole microsecond. It
// does what rate_gcra.lua does.
func (p GCRAParams) Take(tat GCRATime, now, n int64) (GCRATime, bool) {
	if tat.Micros < now {
		tat = GCRATime{Micros: now}
	}
	to := p.Add(tat, p.Cost(n))
	if p.Add(GCRATime{Micros: now}, p.full).Less(to) {
		return tat, false
	}
	return to, true
}

// Delay returns how long after now n permits can be used, or 0 if at once. It is rounded up to whole
// microseconds, the grain of the server's clock, so a wait for that time always suffices.
func (p GCRAParams) Delay(tat GCRATime, now, n int64) time.Duration {
	if tat.Micros < now {
		tat = GCRATime{Micros: now}
	}
	d := p.sub(p.Add(tat, p.Cost(n)), p.Add(GCRATime{Micros: now}, p.full))
	return micros(max(0, d.RoundUp()))
}

// whole returns how many permits a time is worth, rounded down.
func (p GCRAParams) whole(us int64) int64 {
	hi, lo := bits.Mul64(uint64(max(0, us)), uint64(p.Den))
	if hi >= uint64(p.step) {
		return math.MaxInt64
	}
	n, _ := bits.Div64(hi, lo, uint64(p.step))
	return int64(min(n, math.MaxInt64))
}

// Remaining returns how many permits can be used at now.
func (p GCRAParams) Remaining(tat GCRATime, now int64) int64 {
	if tat.Micros < now {
		tat = GCRATime{Micros: now}
	}
	d := p.sub(p.Add(GCRATime{Micros: now}, p.full), tat)
	if d.Micros < 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(d.Micros), uint64(p.Den))
	lo, carry := bits.Add64(lo, uint64(d.Num), 0)
	n, _ := bits.Div64(hi+carry, lo, uint64(p.step))
	return min(int64(n), p.burst)
}

// Reset returns how long after now the whole burst can be used.
func (p GCRAParams) Reset(tat GCRATime, now int64) time.Duration {
	return micros(max(0, tat.RoundUp()-now))
}

// burstSeconds returns the time in which a whole burst refills, rounded up. The state contains it, so that a
// state that was written under another limit can be told from a state left behind by a clock that was set back.
// If it is at most half a minute, it is 0 and left out: scripts consider no state left behind that lies less
// than a minute ahead.
func (p GCRAParams) burstSeconds() int64 {
	if s := p.full.RoundUp()/1e6 + 1; s > 30 {
		return s
	}
	return 0
}

// micros returns a time in microseconds, at most MaxBurstTime.
func micros(us int64) time.Duration {
	return time.Duration(min(us, MaxBurstTime.Microseconds())) * time.Microsecond
}

// Millis is micros of milliseconds, 0 or more.
func Millis(ms int64) time.Duration { return micros(min(max(0, ms), math.MaxInt64/1000) * 1000) }
