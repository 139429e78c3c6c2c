// Package redislock provides distributed locks on Redis. It tells a holder when its lock is lost. It shares
// keys and channels with Redisson's RLock, so services in Java and Go exclude and wake each other.
//
// # What it promises
//
//   - While Redis keeps its data, a name has at most one hold at a time, among all processes. The readers of an
//     [RWMutex] hold it together, and the Locks of an [Owner] share one hold.
//   - The watchdog, as Redisson calls it, renews a lock every third of its lease until the lock is unlocked.
//     When a process dies, its locks are free within one lease.
//   - A holder learns of a loss before its lease can end in Redis: [Lock.Done] closes, contexts of the lock end
//     with the cause [ErrLost], and [Lock.Valid] returns false. This holds while Redis hangs or cannot be
//     reached, provided that the process gets to run and that its clock and the server's differ in rate by at
//     most one percent. A lost lock stays lost.
//   - The next renewal, within a third of the lease, notices that a key was removed while its lease ran.
//     [Mutex.ForceUnlock] notifies the holder at once, or as soon as its Client has subscribed.
//   - A waiter gets the lock when it is free, whatever messages were lost: it asks again after each unlock,
//     after each interruption of its subscription, when the holder's lease ends, and at least once in each poll
//     interval, five seconds by default.
//   - A call returns when its context ends, even while Redis hangs. [Lock.Unlock] sends the release even if its
//     context has ended, and returns at most a second later. If a call fails, the Client releases in the
//     background whatever Redis may have granted to it.
//   - No call for one hold affects another hold: each acquisition from Redis has its own id.
//   - Leases run by the clock of Redis, never by the clock of a client.
//
// # What it does not promise
//
//   - Exclusion across a failover that loses writes. Redis replicates asynchronously, and a replica that has
//     not seen the lock grants it again. The previous holder learns of the loss at its next renewal.
//   - Exclusion across the removal of a key by DEL, FLUSHALL, eviction or [Mutex.ForceUnlock], until the holder
//     has learned of it.
//   - Exclusion for a process that does not run: if it is suspended for longer than the lease, it learns of the
//     loss when it wakes. Where two writers must never overlap, the resource itself has to refuse the older
//     one: [WithFencing] gives each hold a higher [Lock.Token].
//   - An order among waiters of different processes, except with [Client.FairMutex].
//   - Reentrancy by goroutine: a hold belongs to its Lock. [ContextWithOwner] makes locks reentrant for an
//     [Owner].
//
// # Nil arguments
//
// A nil context or function is refused with a *cogwheel.InvalidError: the call returns it, passes it to its callback,
// or panics with it if it has neither. FromContext and ContextWithOwner panic. A nil or zero Lock is not held, and a
// nil Owner is none. Nil or zero Clients, Quorums and mutexes of all kinds are not ready for use.
//
// # Cost
//
//	lock and unlock   one round trip and one script each; concurrent calls for many locks share pipelines,
//	                  and calls for a Mutex share scripts, unless Redis is a cluster
//	handoff           no round trip: a lock that is unlocked while callers of the process wait goes to the next
//	held lock         one wheel entry, no goroutine; one call renews up to 500 locks
//	waiting           the caller's goroutine, or none with LockFunc; all waiters of a lock in a process share one
//	                  wheel entry, one request per wake-up, and a subscription connection (in a cluster one per
//	                  master)
//	calls in flight   up to two goroutines per node, which later calls use again; 18 while Redis hangs; with
//	                  WithReplicas, one per call; none for calls that follow each other alone within milliseconds,
//	                  over a connection of their own, if Redis is a single server and its client has no hooks
//	a Client          one connection for subscriptions while callers wait or locks are held (unless only for less
//	                  than a tenth of a second), up to eight for renewals and releases in the background
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
// The lock is a hash with the name of the lock. It has one field, the holder's id, and an expiry. Releases are
// published on the channel redisson_lock__channel:{name}. Redisson uses the same form (RedissonLock, 3.16 and
// later). The id is a UUID and a number that counts acquisitions. So every script may execute twice, and no
// late message does harm.
package redislock
