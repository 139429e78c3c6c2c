package ratelimit

import (
	"math"
	"math/bits"
	"time"
)

// mark is an instant or a span on the server's clock: us microseconds and num/den more, where 0 <= num < den and den
// belongs to the pace.
type mark struct{ us, num int64 }

func (m mark) less(o mark) bool { return m.us < o.us || m.us == o.us && m.num < o.num }

// pace is the arithmetic of the generic cell rate algorithm (ITU-T I.371) in exact rationals. A permit is worth
// step/den microseconds, in lowest terms. Every sum stays below 2^53, so that Lua's numbers hold it exactly.
type pace struct {
	step, den int64
	burst     int64
	full      mark // what a whole burst is worth
}

func newPace(l Limit) pace {
	step, den := int64(l.Per), l.Rate*1000
	for a, b := step, den; ; a, b = b, a%b {
		if b == 0 {
			step, den = step/a, den/a
			break
		}
	}
	p := pace{step: step, den: den, burst: l.Burst}
	p.full = p.cost(l.Burst)
	return p
}

// cost is what n permits are worth. It saturates beyond the age of the universe.
func (p pace) cost(n int64) mark {
	hi, lo := bits.Mul64(uint64(n), uint64(p.step))
	if hi >= uint64(p.den) {
		return mark{us: math.MaxInt64 / 4}
	}
	whole, rest := bits.Div64(hi, lo, uint64(p.den))
	return mark{int64(min(whole, math.MaxInt64/4)), int64(rest)}
}

func (p pace) add(a, b mark) mark {
	s := mark{a.us + b.us, a.num + b.num}
	if s.num >= p.den {
		s.us, s.num = s.us+1, s.num-p.den
	}
	return s
}

func (p pace) sub(a, b mark) mark {
	d := mark{a.us - b.us, a.num - b.num}
	if d.num < 0 {
		d.us, d.num = d.us-1, d.num+p.den
	}
	return d
}

// take moves the theoretical arrival time tat by n permits if they may be used at now, which is in whole microseconds.
// It is what rate_gcra.lua does.
func (p pace) take(tat mark, now, n int64) (mark, bool) {
	if tat.us < now {
		tat = mark{us: now}
	}
	to := p.add(tat, p.cost(n))
	if p.add(mark{us: now}, p.full).less(to) {
		return tat, false
	}
	return to, true
}

// delay is how long after now n permits can be used, 0 if at once. It is rounded up to whole microseconds, the grain of
// the server's clock, so that waiting for it is never in vain.
func (p pace) delay(tat mark, now, n int64) time.Duration {
	if tat.us < now {
		tat = mark{us: now}
	}
	d := p.sub(p.add(tat, p.cost(n)), p.add(mark{us: now}, p.full))
	if d.us < 0 {
		return 0
	}
	if d.num > 0 {
		d.us++
	}
	return micros(d.us)
}

// remaining is how many permits can be used at now.
func (p pace) remaining(tat mark, now int64) int64 {
	if tat.us < now {
		tat = mark{us: now}
	}
	d := p.sub(p.add(mark{us: now}, p.full), tat)
	if d.us < 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(d.us), uint64(p.den))
	lo, carry := bits.Add64(lo, uint64(d.num), 0)
	n, _ := bits.Div64(hi+carry, lo, uint64(p.step))
	return min(int64(n), p.burst)
}

// reset is how long after now the whole burst can be used.
func (p pace) reset(tat mark, now int64) time.Duration {
	if tat.us < now {
		return 0
	}
	us := tat.us - now
	if tat.num > 0 {
		us++
	}
	return micros(us)
}

// micros saturates.
func micros(us int64) time.Duration {
	return time.Duration(min(us, math.MaxInt64/int64(time.Microsecond))) * time.Microsecond
}
