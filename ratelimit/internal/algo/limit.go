package algo

import (
	"math"
	"math/bits"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
)

const refused = conventions.Package("ratelimit")

const (
	maxRate = math.MaxUint32
	maxPer  = 10 * 365 * 24 * time.Hour
)

// MaxBurstTime is the maximum time in which a whole burst refills, so that every sum stays an exact integer in
// Lua. Each time of a Decision ends there too, so that others can add to it and round it up without an overflow.
const MaxBurstTime = 100 * 365 * 24 * time.Hour

// Limit is a ratelimit.Limit whose Burst is set.
type Limit struct {
	Rate  int64
	Per   time.Duration
	Burst int64
}

// validate returns a *cogwheel.InvalidError that names the first bad field.
func (l Limit) validate() error {
	switch {
	case l.Rate < 1 || l.Rate > maxRate:
		return refused.Error("Limit.Rate", l.Rate, "must be 1 to 4294967295")
	case l.Per < time.Microsecond || l.Per > maxPer:
		return refused.Error("Limit.Per", l.Per, "must be 1µs to 87600h")
	case l.Burst < 1 || l.Burst > maxRate:
		return refused.Error("Limit.Burst", l.Burst, "must be 1 to 4294967295")
	}
	// Burst times Per/Rate.
	hi, lo := bits.Mul64(uint64(l.Per), uint64(l.Burst))
	if hi >= uint64(l.Rate) {
		return refused.Error("Limit.Burst", l.Burst, "must refill within 100 years")
	}
	if refill, _ := bits.Div64(hi, lo, uint64(l.Rate)); refill > uint64(MaxBurstTime) {
		return refused.Error("Limit.Burst", l.Burst, "must refill within 100 years")
	}
	return nil
}

// ValidateWindow is validate for algorithms without a burst that count in milliseconds.
func (l Limit) ValidateWindow() error {
	if err := l.validate(); err != nil {
		return err
	}
	switch {
	case l.Burst != l.Rate:
		return refused.Error("Limit.Burst", l.Burst, "must equal Rate: a window has no burst of its own")
	case l.Per%time.Millisecond != 0:
		return refused.Error("Limit.Per", l.Per, "must be whole milliseconds")
	}
	return nil
}

// validateSliding is validateWindow for a script that multiplies permits by milliseconds.
func (l Limit) validateSliding() error {
	if err := l.ValidateWindow(); err != nil {
		return err
	}
	if l.Rate > (exact-1)/l.Per.Milliseconds() {
		return refused.Error("Limit.Rate", l.Rate, "times Per in milliseconds must be below 2^53 for SlidingWindow")
	}
	return nil
}
