package ratelimit

import (
	"fmt"
	"math"
	"math/bits"
	"time"
)

// Bounds of a Limit.
const (
	MaxRate = math.MaxUint32            // permits a period, which is also what one entry of Redisson's log can hold
	MaxPer  = 10 * 365 * 24 * time.Hour // longest period
)

// maxBurstTime bounds how long a whole burst takes to refill, so that every sum stays an exact integer in
// Lua.
const maxBurstTime = 100 * 365 * 24 * time.Hour

// Limit is a rate: Rate permits every Per, of which up to Burst may be used at once. Make it with PerSecond,
// PerMinute or PerHour, or as a literal with all three fields set. The whole burst must refill within 100
// years. It is a comparable value.
type Limit struct {
	Rate  int64         // permits in each Per, 1 to MaxRate
	Per   time.Duration // 1 µs to MaxPer; whole milliseconds for StoredLimiter and FixedWindow
	Burst int64         // usable at once, 1 to MaxRate; equal to Rate for StoredLimiter and FixedWindow
}

// PerSecond allows n permits a second with a burst of n.
func PerSecond(n int64) Limit { return Limit{n, time.Second, n} }

// PerMinute allows n permits a minute with a burst of n.
func PerMinute(n int64) Limit { return Limit{n, time.Minute, n} }

// PerHour allows n permits an hour with a burst of n.
func PerHour(n int64) Limit { return Limit{n, time.Hour, n} }

// WithBurst returns the limit with another burst.
func (l Limit) WithBurst(n int64) Limit {
	l.Burst = n
	return l
}

// String returns the limit as in "10 per 1s, burst 20".
func (l Limit) String() string { return fmt.Sprintf("%d per %v, burst %d", l.Rate, l.Per, l.Burst) }

// validate returns a *cogwheel.InvalidError that names the first bad field.
func (l Limit) validate() error {
	switch {
	case l.Rate < 1 || l.Rate > MaxRate:
		return argument.Error("Limit.Rate", l.Rate, "must be 1 to 4294967295")
	case l.Per < time.Microsecond || l.Per > MaxPer:
		return argument.Error("Limit.Per", l.Per, "must be 1µs to 87600h")
	case l.Burst < 1 || l.Burst > MaxRate:
		return argument.Error("Limit.Burst", l.Burst, "must be 1 to 4294967295")
	}
	// Burst periods of Per/Rate each.
	hi, lo := bits.Mul64(uint64(l.Per), uint64(l.Burst))
	if hi >= uint64(l.Rate) {
		return argument.Error("Limit.Burst", l.Burst, "must refill within 100 years")
	}
	if refill, _ := bits.Div64(hi, lo, uint64(l.Rate)); refill > uint64(maxBurstTime) {
		return argument.Error("Limit.Burst", l.Burst, "must refill within 100 years")
	}
	return nil
}

// validateWindow is validate for the algorithms that know no burst and count in milliseconds.
func (l Limit) validateWindow() error {
	if err := l.validate(); err != nil {
		return err
	}
	switch {
	case l.Burst != l.Rate:
		return argument.Error("Limit.Burst", l.Burst, "must equal Rate: a window has no burst of its own")
	case l.Per%time.Millisecond != 0:
		return argument.Error("Limit.Per", l.Per, "must be whole milliseconds")
	}
	return nil
}
