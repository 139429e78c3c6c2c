// Package redislock is a distributed lock on Redis whose holder is told when it is lost. It shares keys and
// channels with Redisson's RLock: services in Java and Go exclude and wake each other.
//
// # What it promises
//
//   - While Redis keeps its data, a name has at most one hold at a time, among all processes. Only readers of
//     an [RWMutex] hold it together, and Locks of an [Owner] share a hold.
//   - A lock is renewed every third of its lease, by what Redisson calls the watchdog, until it is unlocked;
//     when its process dies, it is free within one lease.
//   - A loss is announced before the lease can end in Redis: [Lock.Done] closes, contexts of the lock end with
//     the cause [ErrLost], [Lock.Valid] is false. This holds while Redis hangs or cannot be reached, as long as
//     the process gets to run and the clocks differ by at most one percent in rate. A loss is final.
//   - A key that is removed while its lease runs is noticed within a third of the lease. [Mutex.ForceUnlock]
//     notifies the holder at once.
//   - A waiter gets the lock when it is free, whatever messages were lost: it asks again after each unlock,
//     after each interruption of its subscription, when the holder's lease ends, and at its poll, every five
//     seconds by default.
//   - A call returns when its context ends, even while Redis hangs, and [Lock.Unlock] frees the key even if
//     its context has ended. What a failed call may have taken is released in the background.
//   - No call about a hold touches another one: each acquisition from Redis has its own id.
//   - No clock of a client reaches Redis.
//
// # What it does not promise
//
//   - Exclusion across a failover that loses writes: Redis replicates asynchronously, and a replica that has
//     not seen the lock gives it away again. The previous holder learns of it at its next renewal.
//   - Exclusion across the removal of a key by DEL, FLUSHALL, eviction or [Mutex.ForceUnlock], until its holder has
//     learned of it.
//   - Exclusion for a process that does not run: one suspended for longer than the lease finds out when it
//     wakes. Where two writers must never overlap, the resource itself has to refuse the older one:
//     [WithFencing] gives each hold a higher [Lock.Token].
//   - An order among waiters of different processes, but for [Client.FairMutex].
//   - Reentrancy by goroutine: a hold belongs to its Lock. [ContextWithOwner] makes locks reentrant for an [Owner].
//
// # Cost
//
//	lock and unlock   one round trip and one script each; those of many locks share pipelines,
//	                  and those of a Mutex share scripts, unless Redis is a cluster
//	hand-over         a lock that is unlocked while others of the process wait goes to the next without a round trip
//	held lock         one wheel entry, no goroutine; renewals of up to 500 locks travel in one call
//	waiting           the caller's goroutine, or none with LockFunc; all waiters of a lock in a process share a wheel
//	                  entry, a request per wake-up, and a subscription connection (in a cluster one per master)
//	a call            one goroutine while it is in flight, unless its context can never end; it is kept for a
//	                  second or two for the next call
//	a Client          one connection for subscriptions while callers wait or locks are held (not for locks held for
//	                  less than a tenth of a second), up to eight for renewals when there are any
//
// # Example
//
//	locks, err := redislock.New(rdb)
//	...
//	defer locks.Close(ctx)
//	err = locks.Mutex("orders:42").Do(ctx, func(ctx context.Context) error {
//		return ship(ctx, 42) // ctx ends if the lock is lost
//	})
//
// # Algorithm
//
// The lock is a hash named like the lock with one field, the holder's id, and an expiry; releases are
// published on redisson_lock__channel:{name}. The form is Redisson's (RedissonLock, 3.16 and later); the id
// is a UUID and a number that counts acquisitions, so that every script may execute twice and no message can
// come too late to be harmless.
package redislock
