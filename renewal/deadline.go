package renewal

import "time"

// This file is arithmetic only: no clock is read here, no state is kept.

// Bounds of the lease times that Add and Watch accept, on any wheel. See Renewer.MinTTL for the shortest on a
// given one.
const (
	MinTTL = time.Millisecond
	MaxTTL = 365 * 24 * time.Hour
)

// minTicks is how many ticks of the wheel a lease lasts at least. A renewal is sent a third of the lease and
// up to two ticks after the last one, and the deadline lies a tick earlier than it would on an exact wheel;
// what is left has to suffice for an answer.
const minTicks = 10

const (
	// maxLateness caps what a lease gives away for a wheel entry that fires late.
	maxLateness = 50 * time.Millisecond

	// maxWindow caps how much earlier than due a lease is renewed to travel with others.
	maxWindow = 300 * time.Millisecond

	// minCallTimeout keeps the timeout of one call above ordinary round trips when leases are short.
	minCallTimeout = 250 * time.Millisecond
)

// margin is the part of a lease that its holder does not use: one percent for clocks that run at different
// rates, a tick, by which the wheel entry that announces the end may be late, and a tenth of the lease, at
// most 50 ms, for what delays the process.
func margin(ttl, tick time.Duration) time.Duration {
	return ttl/100 + tick + min(ttl/10, maxLateness)
}

// lifetime is for how long the holder may rely on a lease. It counts from the instant before the request was sent,
// never from the reply: the server cannot have started its own countdown earlier, so its expiry lies behind ours
// for every split of the round trip.
func lifetime(ttl, tick time.Duration) time.Duration { return ttl - margin(ttl, tick) }

// firstRenewal is the age at which a new lease is renewed for the first time. It is spread over the second
// half of the ordinary interval, so that leases taken together do not fall due together. u is uniform in
// [0,1).
func firstRenewal(ttl time.Duration, u float64) time.Duration {
	return scale(ttl/3, 0.5+0.5*u)
}

// nextRenewal is the age at which a renewed lease is renewed again: a third of the lease, less up to a tenth
// of that, so that phases keep drifting apart.
func nextRenewal(ttl time.Duration, u float64) time.Duration {
	return scale(ttl/3, 0.9+0.1*u)
}

// retryAfter is the pause after a renewal that brought no answer.
func retryAfter(ttl time.Duration, u float64) time.Duration {
	return scale(ttl/20, 0.75+0.5*u)
}

// window is the stretch of time within which leases are renewed together, with the first of them.
func window(ttl time.Duration) time.Duration { return min(ttl/100, maxWindow) }

// batchDelay is how long the first lease of a slot waits for the others, whose entries fire in the same tick.
func batchDelay(ttl time.Duration) time.Duration { return window(ttl) / 10 }

// slot moves the instant of a renewal, due in wait at the given age of the Renewer, back to one that leases
// of the same TTL share, so that one wake-up of the wheel serves all that fall due within a window. An
// instant that would lie in the past is not moved.
func slot(age, wait, window time.Duration) time.Duration {
	if at := (age + wait).Truncate(window); at > age {
		return at - age
	}
	return wait
}

// callTimeout bounds one call to a backend, so that a lease outlives several lost calls in a row: a third of
// the lease has passed when the first is sent, and each try costs at most a sixth plus the pause before the
// next.
func callTimeout(ttl time.Duration) time.Duration {
	return max(ttl/6, min(ttl/2, minCallTimeout))
}

func scale(d time.Duration, f float64) time.Duration {
	return time.Duration(float64(d) * f)
}
