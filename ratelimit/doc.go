// Package ratelimit limits rates through Redis, exactly and for any number of processes.
//
// There are two kinds of limiter. [Keyed] has its limit in the code and any number of keys, such as users or addresses, each of
// which costs Redis one small string that expires by itself. [Limiter] has a name, and its limit stands in Redis, where it
// can be changed for everybody at any time; it shares keys with Redisson's RRateLimiter.
//
// # What it promises
//
//   - Keyed with [GCRA] grants at most Burst + Rate*w/Per in any time w, Limiter at most Rate in any interval,
//     [FixedWindow] at most Rate in each window. All by the clock of Redis: clocks of clients are never used, but under the
//     scope [PerClient], which is counted by the process's own monotonic clock.
//   - A lost reply, a repeated call and a killed client can only make it grant less. State that Redis lost
//     grants at most one burst more.
//   - Nothing done to save round trips ever grants more than the limit.
//   - Waiters of one process are served in order. None waits for what cannot come before its deadline.
//   - While Redis is down a [Policy] decides, at the speed of memory.
//
// It does not promise an order among waiters of different processes, nor a limit across the loss of data, as in a failover,
// beyond that one burst.
//
// # Cost
//
//	Allow            one round trip, shared by all concurrent callers in this process: of the key, and of other Keyed keys of the node
//	Allow, denied    the same the first time; then none until the time that Redis named, for at most a second
//	Wait             as Allow, once for all waiters of a key, when the first of them can be served; one entry of the wheel
//	PerClient        no round trip, but for one a second while it is used; some 40 bytes here for each grant within the interval
//	Redis, Keyed     TIME, GET and SET, O(1); a string of at most 60 bytes
//	Redis, Limiter   eight calls; an entry of 21 bytes for each grant within the interval
//
// # Example
//
//	limits, err := ratelimit.New(rdb) // once per process
//	if err != nil {
//		return err
//	}
//	defer limits.Close(ctx)
//	perUser := limits.Keyed("api", ratelimit.PerSecond(10).WithBurst(20))
//	r, err := perUser.Allow(ctx, user)
//	if err != nil {
//		return err // Redis is down, and the policy is FailClosed
//	}
//	if !r.Allowed {
//		return tooManyRequests(r.RetryAfter)
//	}
//
// docs/ratelimit.md tells which algorithm is for what.
package ratelimit
