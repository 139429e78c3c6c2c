// Package ratelimit limits rates through Redis, exactly and for any number of processes.
//
// There are two kinds of limiter. The limit of a [Limiter] is set in the code; it holds for any number of keys,
// such as users or addresses, each of which costs Redis one small string that expires. The limit of a
// [StoredLimiter] is stored in Redis under its name, where it can be changed for all processes at any time; it
// shares keys with Redisson's RRateLimiter. [Client.All] decides by several limits in one step, and
// [Limiter.With] sets the limit per call. [WithShadow] tries a limit on the requests of production, and denies none.
//
// # What it promises
//
//   - Redis bounds the permits that it grants, by its own clock. In any time w, a Limiter with GCRA grants at
//     most Burst + Rate*w/Per, and with SlidingWindow at most Rate + Rate*w/Per. A Limiter with FixedWindow
//     grants at most Rate in each window. A StoredLimiter grants at most Rate in any interval of length Per, but
//     forgets its grants on Delete, and on SetRate and UpdateRate without WithState. Clocks of clients are not used.
//   - A lost reply, a script that go-redis sends twice, a cancelled wait and a killed client can only reduce
//     the permits that are granted. If Redis loses the state of a key, as in a failover, the key may be granted
//     one burst more.
//   - The waiters of one process are served in order. With GCRA those for the same number of permits are, also
//     those of several processes, as far as a process reserves: one place, and more within 100 ms. A waiter does not
//     wait for permits that cannot come before its deadline.
//   - While Redis is down a [Policy] decides: after the timeout of [WithTimeout], and then at the speed of
//     memory. The bounds above do not count its grants.
//   - A request of an [All] is charged to every limit or to none.
//   - No two pairs of a Limiter's prefix and key share a count, whatever bytes clients choose.
//
// With FixedWindow, SlidingWindow and a StoredLimiter it does not promise an order among waiters of different
// processes.
//
// # Cost
//
//	Allow            one round trip, shared by concurrent callers for the key and for other keys of the node
//	Allow, denied    the same the first time; then none until the time that Redis named, for at most a second
//	Wait             at most one round trip in 10 ms for all waiters of a key; one entry on the wheel
//	All              one round trip, shared by concurrent callers for the same parts
//	Redis, Limiter     TIME, GET and SET, O(1); a string of at most 80 bytes, more beside waiters
//	Redis, StoredLimiter   eight commands; 21 bytes for each granted call within the interval
//
// # Invalid arguments
//
// An invalid argument is a *cogwheel.InvalidError. [New] and methods with an error return it. [Client.Limiter],
// [Limiter.With], [Client.StoredLimiter] and [Client.All] return a limiter whose Err and other methods return it.
// [HashKeys], WaitFunc with a nil function, and the constructors and options of middleware panic with it.
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
