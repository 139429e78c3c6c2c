// Package semaphore limits concurrency across processes: a semaphore is a number of permits in Redis that
// processes acquire and release. It uses the keys and channels of Redisson's RSemaphore and
// RPermitExpirableSemaphore, so that services in Java and Go share permits and wake each other.
//
// Most programs need a [Semaphore]: a [Grant] holds its permits and renews them, and they become free when the
// process of the holder dies. A [CountingSemaphore] is only a number: its permits have no holder, and a process
// that dies takes them with it.
//
// # What it promises
//
//   - While Redis keeps its data, processes never hold more permits than exist, by the clock of the server,
//     unless their number is lowered or the semaphore is deleted while they are held.
//   - The permits of a Semaphore whose holder died are free within one lease.
//   - A holder learns of a loss before its lease can end in Redis, unless [Semaphore.UpdateLease] has shortened it:
//     [Grant.Done] closes, contexts of the grant end with the cause [ErrLost], and [Grant.Valid] returns false. A lost
//     grant stays lost. Permits that are removed while the lease runs, as by [Semaphore.Delete], are noticed within a
//     third of the lease, by a renewal.
//   - A call takes effect at most once, however often the Client sends it. Permits that were granted by a
//     lost reply, or to a waiter that had left, are released.
//   - A waiter gets its permits when they are free, whatever messages were lost: it asks again when it is woken,
//     after each interruption of its subscription, and at least once in each poll interval (see [WithPoll]). The first
//     of all processes also asks when the next lease ends.
//   - The requests of one process are granted in order, so that small requests do not starve a large one.
//     With [Client.FairSemaphore], the requests of all processes are. Without it, a caller of another process overtakes
//     at most until the first has waited for 4 ms; see [Semaphore.Acquire].
//   - A call returns when its context ends, even while Redis hangs. [Grant.Release] and [CountingSemaphore.Release]
//     send the release even if it has ended, and return at most a second later.
//   - Leases run by the clock of Redis, never by the clock of a client.
//
// # What it does not promise
//
//   - That the permits of a CountingSemaphore come back when their holder dies. Use a Semaphore.
//   - That the limit holds across a failover that loses writes, or while a frozen process believes that it
//     holds permits. [Grant.Token] fences off the latter.
//   - An exact order among processes without FairSemaphore.
//
// # Nil arguments
//
// A nil context or function is refused with a *cogwheel.InvalidError: the call returns it, passes it to its callback,
// or panics with it if it has neither. FromContext panics. A nil or zero Grant is not held. Nil or zero Clients and
// semaphores are not ready for use.
//
// # Cost
//
//	acquire and release   one script each; concurrent calls of one process share scripts
//	waiting               per name and process: one wheel entry, one subscription, one script per query; a grant
//	                      costs about three scripts in all, however many processes wait
//	held grant            one wheel entry, no goroutine; one script renews up to 500 grants of a semaphore
//	AcquireFunc           no goroutine while it waits
//	Client                one connection for subscriptions while callers wait, up to four for renewals
//
// # Example
//
//	semaphores, err := semaphore.New(rdb)
//	...
//	defer semaphores.Close(ctx)
//	exports := semaphores.Semaphore("exports", 5) // the first call sets them
//	err = exports.Do(ctx, 1, export) // the context of export ends if the permit is lost
//
// # Algorithm
//
// A CountingSemaphore is a number under its name. Redis also keeps a sequence number for each process, by
// which scripts recognise a call that is sent again.
//
// A Semaphore also has the ids of its held permits, each with the time at which it expires, as Redisson
// does since 3.17. The client chooses the ids, so a script recognises a request that is sent again. Both
// kinds announce free permits on the channel redisson_sc:{name}. Processes that wait stand in {name}:waiting, and are
// woken one after the other on channels of their own.
//
// With FairSemaphore, Redis keeps the requests of all processes in order of arrival. A call that frees
// permits assigns them to the first request, whose process must claim them in time.
package semaphore
