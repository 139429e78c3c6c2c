package scripts

// Rate limiters. Times within a state and a reply are microseconds of the server's clock, as integers; a
// fraction of a microsecond is a numerator over the limit's own denominator, so that nothing is ever rounded.
var (
	// RateGCRA decides a batch of requests on one key. Neither a grant nor a charge that is taken back has an
	// id, so it is sent once.
	RateGCRA = declare("rate_gcra", OnceOnly)

	// RateWindow decides a batch of requests on one fixed window. It is sent once.
	RateWindow = declare("rate_window", OnceOnly)

	// RateSliding decides a batch of requests on one sliding window. It is sent once.
	RateSliding = declare("rate_sliding", OnceOnly)

	// RateAll decides a batch of requests that want permits of several limits each, all or none. It is sent
	// once.
	RateAll = declare("rate_all", OnceOnly)

	// RateLog decides a batch of requests on Redisson's RRateLimiter. The members are the ids: a member that
	// is in the log already is granted and not charged again, and one that is not in it is not taken out.
	RateLog = declare("rate_log")

	// RateSet writes the limit.
	RateSet = declare("rate_set")
)
