// Package ratelimit limits rates through Redis, exactly and for any number of processes.
//
// There are two kinds of limiter. [Limiter] has its limit in the code and any number of keys, such as users or
// addresses, each of which costs Redis one small string that expires. [StoredLimiter] has a name, and its limit
// is in Redis, where it can be changed for all processes at any time; it shares keys with Redisson's
// RRateLimiter. [Client.All] decides by several limits in one step, and [Limiter.With] takes the limit per call.
//
// # What it promises
//
//   - Redis grants for a Limiter with [GCRA] at most Burst + Rate*w/Per in any time w, for a StoredLimiter at
//     most Rate in any interval of Per, and with [FixedWindow] at most Rate in each window, by its own clock.
//     Clocks of clients are not used.
//   - A lost reply, a script that go-redis sends twice, a cancelled wait and a killed client can only make it
//     grant less. A key whose state Redis loses, as in a failover, may be granted one burst more.
//   - Waiters of one process are served in order. None waits for permits that cannot come before its
//     deadline.
//   - While Redis is down a [Policy] decides, after the timeout of [WithTimeout] and then at the speed of
//     memory. The bounds above do not count its grants.
//   - A request of [All] is charged to every limit or to none.
//   - No two pairs of a Limiter's prefix and key share a count, whatever bytes clients choose.
//
// It does not promise an order among waiters of different processes.
//
// # Cost
//
//	Allow            one round trip, shared by the concurrent callers of the key, and of other keys of the node
//	Allow, denied    the same the first time; then none until the time that Redis named, for at most a second
//	Wait             at most one round trip in 10 ms for all waiters of a key; one entry of the wheel
//	All              one round trip, shared by the concurrent callers for the same parts
//	Redis, Limiter     TIME, GET and SET, O(1); a string of at most 60 bytes
//	Redis, StoredLimiter   eight commands; 21 bytes for each granted call within the interval
//
// # Example
//
//	limits, err := ratelimit.New(rdb) // once per process
//	if err != nil {
//		return err
//	}
//	defer limits.Close(ctx)
//	perUser := limits.Limiter("api", ratelimit.PerSecond(10).WithBurst(20))
//	r, err := perUser.Allow(ctx, user)
//	if err != nil {
//		return err // Redis is down, and the policy is FailClosed
//	}
//	if !r.Allowed {
//		return tooManyRequests(r.RetryAfter)
//	}
//
// docs/ratelimit.md says which algorithm suits which purpose, and what each error means.
package ratelimit
