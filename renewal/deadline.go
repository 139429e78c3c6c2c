package renewal

import "time"

// This file is arithmetic only: it reads no clock and keeps no state.

// Bounds of the TTLs that Add and Watch accept, on any wheel. Renewer.MinTTL returns the lower bound on a given
// wheel.
const (
	MinTTL = time.Millisecond
	MaxTTL = 365 * 24 * time.Hour
)

// minTicks is the least number of ticks of the wheel in a lease. A renewal is sent a third of the lease and up
// to two ticks after the previous one, and the deadline is a tick earlier than on an exact wheel. The rest must
// suffice for a reply.
const minTicks = 10

const (
	// maxLateness bounds the part of the margin for a wheel entry that fires late.
	maxLateness = 50 * time.Millisecond

	// maxWindow bounds how early a lease is renewed to share a call with others.
	maxWindow = 300 * time.Millisecond

	// minCallTimeout keeps the timeout of one call above ordinary round trips when leases are short.
	minCallTimeout = 250 * time.Millisecond
)

// margin returns the part of a lease that its holder does not use: one percent for clocks of different rates, a
// tick because the wheel entry that announces the end may be late, and a tenth of the lease, at most 50 ms, for
// delays of the process.
func margin(ttl, tick time.Duration) time.Duration {
	return ttl/100 + tick + min(ttl/10, maxLateness)
}

// lifetime returns how long the holder may rely on a lease. It counts from the instant before the request was
// sent, never from the reply: the server cannot have started its countdown earlier, so it ends later than ours,
// however the round trip divides.
func lifetime(ttl, tick time.Duration) time.Duration { return ttl - margin(ttl, tick) }

// firstRenewal returns the age at which a new lease is renewed first. It is spread over the second half of the
// ordinary interval, so that leases obtained together are not due together. u is uniform in [0,1).
func firstRenewal(ttl time.Duration, u float64) time.Duration {
	return scale(ttl/3, 0.5+0.5*u)
}

// nextRenewal returns the age at which a renewed lease is renewed again: a third of the lease, less up to a
// tenth of that, so that the leases drift apart.
func nextRenewal(ttl time.Duration, u float64) time.Duration {
	return scale(ttl/3, 0.9+0.1*u)
}

// retryAfter returns the pause after a renewal without an answer.
func retryAfter(ttl time.Duration, u float64) time.Duration {
	return scale(ttl/20, 0.75+0.5*u)
}

// window returns the time within which leases are renewed together.
func window(ttl time.Duration) time.Duration { return min(ttl/100, maxWindow) }

// batchDelay returns how long the first lease of a slot waits for the others, whose entries fire in the same
// tick.
func batchDelay(ttl time.Duration) time.Duration { return window(ttl) / 10 }

// slot returns when to send a renewal that is due in wait, at the given age of the Renewer. It moves the
// instant back to one that leases of the same TTL share, so that one wake-up of the wheel serves all that are
// due within a window. It does not move an instant into the past.
func slot(age, wait, window time.Duration) time.Duration {
	if at := (age + wait).Truncate(window); at > age {
		return at - age
	}
	return wait
}

// callTimeout returns the timeout of one call to a backend, so that a lease outlives several lost calls in a
// row: a third of the lease has passed when the first is sent, and each try costs at most a sixth plus the
// pause before the next.
func callTimeout(ttl time.Duration) time.Duration {
	return max(ttl/6, min(ttl/2, minCallTimeout))
}

func scale(d time.Duration, f float64) time.Duration {
	return time.Duration(float64(d) * f)
}
