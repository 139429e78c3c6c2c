package wheel

import (
	"math"
	"math/bits"
	"time"
)

// ticks converts between instants and ticks.
type ticks struct {
	length     uint64 // nanoseconds
	reciprocal uint64 // 2^64 / length, rounded up
}

func newTicks(length time.Duration) ticks {
	return ticks{uint64(length), math.MaxUint64/uint64(length) + 1}
}

// tickOf returns ns / tick by multiplication: the rounded-up reciprocal gives at most one too many.
func (t ticks) tickOf(ns int64) int64 {
	if ns <= 0 {
		return 0
	}
	q, _ := bits.Mul64(uint64(ns), t.reciprocal)
	if q*t.length > uint64(ns) {
		q--
	}
	return int64(q)
}

// firstOf returns the first instant of a tick.
func (t ticks) firstOf(tick int64) int64 { return tick * int64(t.length) }

// lastOf returns the last instant of a tick.
func (t ticks) lastOf(tick int64) int64 { return (tick+1)*int64(t.length) - 1 }
