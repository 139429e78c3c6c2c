package renewal

import (
	"time"
	"unsafe"
)

var (
	Elapsed      = elapsed
	FirstRenewal = firstRenewal
	NextRenewal  = nextRenewal
	RetryAfter   = retryAfter
	Window       = window
	CallTimeout  = callTimeout
)

// Tick is that of the tests' wheels.
const Tick = time.Millisecond

func Lifetime(ttl time.Duration) time.Duration { return lifetime(ttl, Tick) }

func Deadline(sentAt time.Time, ttl time.Duration) time.Time {
	return term{sentAt, ttl, Tick}.deadline()
}

// WithWall returns t with its wall clock moved by d and its monotonic reading left alone, as a clock step
// does. No exported way leads there: it moves both and then takes the monotonic reading, the second word of a
// Time, back.
func WithWall(t time.Time, d time.Duration) time.Time {
	moved := t.Add(d)
	words := (*[2]int64)(unsafe.Pointer(&moved))
	words[1] -= int64(d)
	if moved.Sub(t) != 0 || moved.Round(0).Sub(t.Round(0)) != d {
		panic("time.Time is laid out differently in this Go version")
	}
	return moved
}
