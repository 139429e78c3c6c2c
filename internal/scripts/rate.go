package scripts

// Rate limiters. Times within a state and a reply are microseconds of the server's clock, as integers; a fraction of a
// microsecond is a numerator over the limit's own denominator, so that nothing is ever rounded.
var (
	// RateGCRA decides a batch of requests on one key. A grant has no id, so it is sent once.
	RateGCRA = declare("rate_gcra", OnceOnly)

	// RateRefund takes the last grant of a key back; it compares and swaps, so a repeat does nothing.
	RateRefund = declare("rate_refund")

	// RateWindow decides a batch of requests on one fixed window. It is sent once.
	RateWindow = declare("rate_window", OnceOnly)

	// RateLog decides a batch of requests on Redisson's RRateLimiter. The members are the ids: a member that is
	// in the log already is granted and not charged again.
	RateLog = declare("rate_log")

	// RateLogReserve enters a member at the earliest time that keeps every window within the rate.
	RateLogReserve = declare("rate_log_reserve")

	// RateReturn takes a member out of the log and gives its permits back.
	RateReturn = declare("rate_return")

	// RateLimit reads the limit, and lets its keep-alive begin anew.
	RateLimit = declare("rate_limit")

	// RateSet writes the limit.
	RateSet = declare("rate_set")
)
