package scripts

// The scripts of rate limiters. Times in a state or a reply are microseconds of the server's clock, as integers. A
// fraction of a microsecond is a numerator over a denominator that the limit determines, so nothing is rounded.
var (
	// RateGCRA decides a batch of requests on one key. Grants and returned charges have no ids, so it is sent once.
	RateGCRA = declare("rate_gcra", OnceOnly, shares(share{
		script: RatesGCRA, keys: 1, args: 8, own: []int{7}, replies: 5,
	}))

	RatesGCRA = declare("rates_gcra", OnceOnly) // RateGCRA for many keys, one run of requests each

	// RateWindow decides a batch of requests on one fixed window. It is sent once.
	RateWindow = declare("rate_window", OnceOnly)

	// RateSliding decides a batch of requests on one sliding window. It is sent once.
	RateSliding = declare("rate_sliding", OnceOnly)

	// RateAll decides a batch of requests, each for permits of several limits, all or none. It is sent once.
	RateAll = declare("rate_all", OnceOnly)

	// RateLog decides a batch of requests on Redisson's RRateLimiter. The members of the log are the ids: a member that
	// is in the log already is granted without another charge, and only a member in the log can be returned.
	RateLog = declare("rate_log")

	// RateSet writes the limit.
	RateSet = declare("rate_set")
)
