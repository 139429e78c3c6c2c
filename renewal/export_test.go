package renewal

import (
	"time"

	"github.com/cogwheel-go/cogwheel/internal/clock"
)

var (
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
	return sentAt.Add(lifetime(ttl, Tick))
}

// UseClock makes a Renewer without leases read its clocks by read.
func (r *Renewer) UseClock(read func() clock.Reading) { r.clock = clock.New(read) }
